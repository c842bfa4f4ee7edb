"""What the command `fit` and its sub-commands do."""
