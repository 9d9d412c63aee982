"""The frozen base language model: loading, tokens, attention, the `Patch` on it, scoring and generation."""
