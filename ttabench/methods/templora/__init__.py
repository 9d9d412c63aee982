"""TempLoRA: a LoRA trained on the context while it is read."""
