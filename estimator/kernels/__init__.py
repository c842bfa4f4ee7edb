"""The kernel families: operator (and tile) → ideal phases and counted events.

A new family is one file with a `…_phases` function and one line in FAMILIES of `estimator.kernels.registry`.
"""
