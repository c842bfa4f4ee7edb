"""Named sources of error, and whether an answer holds."""
