"""StreamAdapter: chunks of a key/value cache, summarised into weight deltas."""

from __future__ import annotations

from ttabench.methods.spec import MethodSpec
from ttabench.methods.streamadapter.cost import cost
from ttabench.methods.streamadapter.settings import PRESETS, RECIPES, StreamAdapterSettings

STREAMADAPTER = MethodSpec(
    name="streamadapter",
    summary="weight deltas mapped from keys and values",
    where="ttabench.methods.streamadapter.method:StreamAdapter",
    Settings=StreamAdapterSettings,
    presets=PRESETS,
    recipes=RECIPES,
    growth="constant",
    trainable=True,
    cost=cost,
    checked=StreamAdapterSettings(queries=4, down=4, chunk=4, window=16, stride=8),
    paper="2411.09289",
)
METHODS = (STREAMADAPTER,)
