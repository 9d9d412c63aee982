"""No context: the floor of every comparison."""
