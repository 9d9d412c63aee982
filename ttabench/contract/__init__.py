"""What every method promises, checked on base models of two layers: `ttabench check METHOD`."""
