"""Figures from answers: metrics, what queries add to them, one estimate."""
