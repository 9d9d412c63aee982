"""LoRA: low-rank weight deltas trained beforehand."""
