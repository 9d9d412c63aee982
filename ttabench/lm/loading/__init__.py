"""Loading of weights and tokenizers by name, folder, hub id or GGUF file."""
