"""Attention kernels, what they are given, and the cache layer they read: nothing here knows a model."""
