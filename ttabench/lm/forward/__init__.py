"""Forward pass of the frozen model under a patch: windows, masks, deltas, heads, capabilities."""

from ttabench.lm.forward import (
    capability_probe as capability_probe,  # registers itself with `capabilities`
)
