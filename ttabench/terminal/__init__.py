"""What stands on a terminal or in a file of text: tables, remarks, progress."""
