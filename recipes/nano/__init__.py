"""How the nano LM is trained and measured: the miniature world as a curriculum, then far questions."""
