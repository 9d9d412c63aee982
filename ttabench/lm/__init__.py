"""Frozen base language model: loading, tokens, attention, patches, scoring and generation."""
