"""Training: a recipe in stages, one loop for all methods, and saves that survive a kill."""
