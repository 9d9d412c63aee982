"""One pass of the frozen model under a patch: windows, masks, deltas, heads; and how each model is run."""

from ttabench.lm.forward import (
    capability_probe as capability_probe,  # which `capabilities.ways_of` asks
)
