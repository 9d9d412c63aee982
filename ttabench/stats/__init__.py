"""Figures from answers: metrics, aggregation, bootstrap."""
