"""Terminal output: tables, notes, progress bars and machine-readable formats."""
