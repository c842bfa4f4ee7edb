"""Named sources of error, and the validity of answers."""
