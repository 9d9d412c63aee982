"""Recipes of what ships with the package: run from the root of the repository, no part of the wheel."""
