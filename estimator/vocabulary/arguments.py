"""Arguments of the Python interface, checked where they come in: one line says which argument, what it was and what it should be."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from estimator.vocabulary.errors import ArgumentError


def require(value: Any, kind: type | tuple[type, ...], name: str, remedy: str) -> None:
    """Raise ArgumentError for an argument of another type; remedy: what to give."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} must be {remedy}, got {_shown(value)}")


def real(value: Any, name: str, unit: str) -> float:
    """A number as a float.  Raises ArgumentError for a text, a truth value, a list and the like."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise ArgumentError(f"{name} must be a number in {unit}, got {_shown(value)}")
    return float(value)


def reals(value: Any, name: str, unit: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A number or numbers as an array of one axis.  Raises ArgumentError for what are none, and for tables."""
    if type(value) is float:
        return np.array([value])
    try:
        found = np.atleast_1d(np.asarray(value if isinstance(value, np.ndarray) or np.isscalar(value) else list(value)))
    except (TypeError, ValueError):
        found = np.array(value, dtype=object)
    if found.size and (found.dtype.kind not in "iuf" or isinstance(value, Mapping | set | frozenset)):
        raise ArgumentError(f"{name} must be a number or a list of numbers in {unit}, got {_shown(value)}")
    if found.ndim > 1:
        raise ArgumentError(f"{name} must be a number or a list of numbers in {unit}, got a table of shape {found.shape}")
    return found.astype(np.float64)


def _shown(value: Any) -> str:
    return f"{value!r:.40} ({type(value).__name__})".replace("\n", " ")
