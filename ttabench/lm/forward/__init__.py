"""One forward of the frozen LM under a patch: its token ids, its window, the path it takes, what is seen of it."""
