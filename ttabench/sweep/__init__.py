"""Sweeps: a suite is expanded to runs, and an engine computes those that are not stored."""
