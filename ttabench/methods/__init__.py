"""Ways to adapt: one method, one file, one settings dataclass. `ttabench.registry` knows them by name."""
