"""Inference with the frozen LM: generation, scoring, choosing and answering, in batches."""
