"""Stored results: records, finished queries, whole files or none."""
