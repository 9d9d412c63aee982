"""Ways to adapt: a room a method or family. `ttabench.methods.registry` knows them by name."""
