"""What a method costs, measured: `ttabench profile`."""
