"""Symmetric positive definite block tridiagonal matrices: solutions, determinant and the diagonal blocks of the inverse.

What deconvolution needs of a precision matrix whose size grows with the length of a recording: cost and memory
are linear in the number of blocks.
"""

from dataclasses import dataclass

import numpy as np

from estimator.quantities import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Factored:
    """A matrix after elimination: `pivot` (b, s, s) Schur complements, `carry` (b − 1, s, s) their solutions with the blocks beside."""

    pivot: Array
    carry: Array
    log_determinant: float


def factored(diagonal: Array, beside: Array) -> Factored:
    """Eliminate block by block.

    `diagonal` (b, s, s) are the blocks on the diagonal, `beside` (b − 1, s, s) those to their right.
    """
    pivot, carry = np.empty_like(diagonal), np.empty_like(beside)
    pivot[0] = diagonal[0]
    log_determinant = float(np.linalg.slogdet(pivot[0])[1])
    for i in range(len(beside)):
        carry[i] = np.linalg.solve(pivot[i], beside[i])
        pivot[i + 1] = diagonal[i + 1] - beside[i].T @ carry[i]
        log_determinant += float(np.linalg.slogdet(pivot[i + 1])[1])
    return Factored(pivot=pivot, carry=carry, log_determinant=log_determinant)


def solved(matrix: Factored, right: Array) -> Array:
    """Solution for a right side of shape (b, s)."""
    count = len(matrix.pivot)
    reduced = np.empty_like(right)
    reduced[0] = right[0]
    for i in range(count - 1):
        reduced[i + 1] = right[i + 1] - matrix.carry[i].T @ reduced[i]
    result = np.empty_like(right)
    result[-1] = np.linalg.solve(matrix.pivot[-1], reduced[-1])
    for i in range(count - 2, -1, -1):
        result[i] = np.linalg.solve(matrix.pivot[i], reduced[i]) - matrix.carry[i] @ result[i + 1]
    return result


def inverse_diagonal(matrix: Factored) -> Array:
    """The blocks of the inverse on its diagonal, shape (b, s, s)."""
    result = np.empty_like(matrix.pivot)
    result[-1] = np.linalg.inv(matrix.pivot[-1])
    for i in range(len(matrix.pivot) - 2, -1, -1):
        result[i] = np.linalg.inv(matrix.pivot[i]) + matrix.carry[i] @ result[i + 1] @ matrix.carry[i].T
    return result
