"""The command `estimate` and its sub-commands."""
