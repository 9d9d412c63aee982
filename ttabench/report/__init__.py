"""Reports on stored runs: comparisons, verdicts, tables, charts and lists."""
