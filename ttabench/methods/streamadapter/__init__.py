"""StreamAdapter: chunks of the key/value cache become weight deltas."""
