"""Recipe of the bundled base model, nano."""
