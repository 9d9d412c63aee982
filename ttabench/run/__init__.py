"""Runs: resolve a request, plan it, evaluate it, and record the result."""
