"""Ways to adapt: a room a method or family. `ttabench.core.registry` knows them by name."""
