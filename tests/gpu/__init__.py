"""A first run on a GPU: answers beside the CPU's, what methods cost, and how that stands beside transformers."""
