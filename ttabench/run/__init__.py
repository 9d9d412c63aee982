"""From what was typed to a stored run: resolving, planning, the loop, training."""
