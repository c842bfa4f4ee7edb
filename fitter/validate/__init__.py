"""A bundle or a fit against rows that it has not seen: predictions, errors, drift, what lies outside its range."""
