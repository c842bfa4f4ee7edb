"""Bundles: what they hold, their files, the local store."""
