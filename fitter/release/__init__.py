"""Bundles as a product: versions, signatures, what a change changes."""
