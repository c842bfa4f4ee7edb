"""Comparison of a bundle or a fit with unseen rows: predictions, errors, drift, rows outside its range."""
