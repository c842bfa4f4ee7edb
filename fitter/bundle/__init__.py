"""A bundle from a selection of rows: drafts, held-out errors, stated uncertainty, what is known about the data."""
