"""The miniature world: synthetic twins of all nine task families, generated from a seed, and the nano LM recipe."""
