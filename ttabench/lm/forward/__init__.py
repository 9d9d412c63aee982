"""One pass of the frozen model under a patch: windows, masks, deltas, heads; and how each model is run."""

from ttabench.lm.forward import probe as probe  # which `ways.ways_of` asks
