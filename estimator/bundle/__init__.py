"""Bundles: their content, their files, the local store."""
