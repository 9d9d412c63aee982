"""Tables of StreamAdapter (arXiv 2411.09289), Generative Adapter (2411.05877), Compressed Context Memory (2312.03414)
and MAC (2403.04317) as data: their figures, the runs that stand for them here, and what each claims."""
