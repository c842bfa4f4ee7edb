"""The command `fit` and its sub-commands."""
