"""Stored results: run records, samples, and their atomic files."""
