"""ttabench: a benchmark of test-time adaptation of language models."""

__version__ = "0.1.0"
