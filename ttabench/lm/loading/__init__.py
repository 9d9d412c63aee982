"""From a name, a folder, a hub id or a GGUF file to weights and a tokenizer, on a device."""
