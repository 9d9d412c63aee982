"""Methods that throw keys and values away: sliding windows, SnapKV, H2O, and what they share."""
