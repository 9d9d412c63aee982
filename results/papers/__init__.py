"""Tables of StreamAdapter (arXiv 2411.09289), Generative Adapter (2411.05877), CCM (2312.03414) and
MAC (2403.04317).

The package has their figures, the runs that reproduce each table row, and the claims of each table.
"""
