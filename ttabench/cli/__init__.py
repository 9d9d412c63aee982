"""Command line: commands, their options, and their output."""
