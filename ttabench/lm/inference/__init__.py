"""What the frozen LM is asked to do: generate, score, choose, answer, in batches."""
