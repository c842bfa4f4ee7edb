"""Bundles as a product: versions, changelogs, signatures, what a change changes."""
