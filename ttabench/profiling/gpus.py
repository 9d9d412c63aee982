"""Peak rates and memory of GPUs, for estimates without measurement."""

from __future__ import annotations

from typing import NamedTuple


class Gpu(NamedTuple):
    """Peak rates of a GPU."""

    flops_per_second: float
    """Dense bfloat16 operations."""
    bytes_per_second: float
    memory_bytes: int


# NVIDIA's data sheets: H200 (2024), H100 SXM (2022), A100 80GB SXM (2021), L40S (2023), L4 (2023).
# Rates that a data sheet states with sparsity are halved.
GPUS = {
    "h200": Gpu(989e12, 4.8e12, 141 * 10**9),
    "h100": Gpu(989e12, 3.35e12, 80 * 10**9),
    "a100": Gpu(312e12, 2.039e12, 80 * 10**9),
    "l40s": Gpu(362e12, 0.864e12, 48 * 10**9),
    "l4": Gpu(121e12, 0.3e12, 24 * 10**9),
}
"""GPUs by name."""
# Measured for llama-3-8b on an H200 (results/gpu/costs.md):
UTILISATION = 0.4
"""Share of the peak operations in one pass over a long text: 0.36 to 0.41 (`icl`)."""
CHUNK_UTILISATION = 0.05
"""Share in passes over chunks of 256 tokens: 0.05 to 0.11 (`window`, `snapkv`, `h2o`, `ccm`)."""
SECONDS_PER_LAYER = 1e-3
"""Least seconds to decode a token, per layer: the CPU launches kernels (31 to 36 ms, 32 layers)."""
