"""Words of a configuration: devices, number formats, whose state answers."""

from __future__ import annotations

from ttabench.core.errors import UnknownName

DEVICES = ("auto", "cpu", "cuda", "xpu", "mps")
DTYPES = ("auto", "float32", "bfloat16", "float16")
BOS = ("auto", "yes", "no")
STATES_OF = {
    "own": "",
    "other": "the state of another context answered; what reading cost stands in the run of the own state",
    "none": "an empty state answered; what reading cost stands in the run of the own state",
}
"""Whose state answers (see `runner`), and what a record says of it."""


def check_loading(device: str, dtype: str, bos: str = "auto") -> None:
    """Whether these words say how a model is loaded; whether the device is there is seen when it is."""
    if device.partition(":")[0] not in DEVICES:
        raise UnknownName("device", device, list(DEVICES))
    if dtype not in DTYPES:
        raise UnknownName("dtype", dtype, list(DTYPES))
    if bos not in BOS:
        raise UnknownName("way to begin a text (--bos)", bos, list(BOS))
