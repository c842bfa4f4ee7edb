"""What the command `estimate` and its sub-commands do."""
