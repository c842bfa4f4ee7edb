"""The equations: columns in, columns out."""
