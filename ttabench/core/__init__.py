"""What every room shares: nouns, errors, names, progress, the machine. Nothing here imports torch at the top."""
