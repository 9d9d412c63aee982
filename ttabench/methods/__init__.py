"""Adaptation methods, one subpackage per method or family. See `ttabench.methods.registry`."""
