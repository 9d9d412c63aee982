"""In-context learning: everything that is read stands in the window."""
