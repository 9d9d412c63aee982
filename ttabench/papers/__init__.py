"""The tables of four papers: their figures, the runs that stand for them here, and what each claims, as data.

    PAPER/paper.yaml              its tables, and the claims of each: `declared`
    PAPER/TABLE.SCALE.yaml        the runs of a table at one scale, as `ttabench sweep` takes them
    reported.csv                  1,126 figures as the papers print them: `reported`

The figures are of StreamAdapter (arXiv 2411.09289), Generative Adapter (2411.05877), Compressed Context Memory
(2312.03414) and MAC (2403.04317).
"""
