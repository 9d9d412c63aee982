"""The one-pass methods of NVIDIA's kvpress, by name."""
