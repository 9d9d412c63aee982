"""Output for people and machines: tables, remarks, progress."""
