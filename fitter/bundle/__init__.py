"""A bundle from a selection of rows: drafts, held-out errors, stated uncertainty, metadata of the data."""
