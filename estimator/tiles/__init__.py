"""Tiles of matrix products: which there are, and which one a library takes."""
