"""Many runs: a suite becomes runs, an engine runs those that are not stored."""
