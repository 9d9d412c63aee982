"""What a command leaves behind: records, finished queries, whole files or none."""
