"""Texts as a tokenizer and a chat template mean them."""
