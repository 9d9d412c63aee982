"""Training: a recipe in stages, the one loop of every method, and what a kill cannot spoil of it."""
