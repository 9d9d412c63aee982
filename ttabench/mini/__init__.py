"""Synthetic world: small synthetic versions of all nine task families, generated from a seed."""
