"""MAC, Memory of Amortized Contexts."""
