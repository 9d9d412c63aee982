"""The command line: what can be typed, what each option says, what a command does."""
