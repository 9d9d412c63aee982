"""Measured cost of methods: `ttabench profile`."""
