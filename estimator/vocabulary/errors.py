"""The estimator's error tree.

EstimatorError                 an operation failed, with its remedy
├── SpecificationError         a GPU specification is missing, wrong or unknown
├── WorkloadError              a workload file or an operator cannot be used
├── BundleError                a bundle is damaged, foreign or too new
├── CountsError                counts of a kernel cannot be read, or their energies are unknown
├── UnwrittenError             a file cannot be written; an OSError too
├── OperatingPointError        a clock, a cap or a setting is outside the range of the GPU
└── ArgumentError              an argument of the Python interface has a wrong type; a TypeError too

A message states the fault, the value, the limit and the remedy.  The commands print it as one
line on stderr and exit with 1.

Arguments of the Python interface are checked on entry, by `require`, `real` and `reals`.
"""

from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimator.vocabulary.quantities import Array


class EstimatorError(Exception):
    """An operation failed; the message is one line and complete."""


class SpecificationError(EstimatorError):
    """A GPU specification is missing, wrong or unknown."""


class WorkloadError(EstimatorError):
    """A workload file or an operator cannot be used."""


class BundleError(EstimatorError):
    """A bundle is damaged, foreign or newer than this program."""


class CountsError(EstimatorError):
    """Counts of a kernel cannot be read, or their energies are unknown."""


class OperatingPointError(EstimatorError):
    """A clock, a power cap or a setting is outside the range of the GPU."""


class ArgumentError(EstimatorError, TypeError):
    """An argument of the Python interface has a wrong type."""


class UnwrittenError(EstimatorError, OSError):
    """A file cannot be written."""


def require(value: Any, kind: type | tuple[type, ...], name: str, remedy: str) -> None:
    """Raise ArgumentError for an argument of another type; remedy: the correct argument."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} must be {remedy}, got {_shown(value)}")


def real(value: Any, name: str, unit: str) -> float:
    """A number as a float.  Raises ArgumentError for other types, such as a text, a bool or a list."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentError(f"{name} must be a number in {unit}, got {_shown(value)}")
    return float(value)


def reals(value: Any, name: str, unit: str) -> "Array":
    """A number or numbers as an array of one axis.  Raises ArgumentError for other types, and for tables."""
    import numpy as np  # most commands that fail have no arrays

    found = np.atleast_1d(np.asarray(value))
    if found.size and (found.dtype.kind not in "iuf" or found.ndim > 1):
        raise ArgumentError(f"{name} must be a number or a list of numbers in {unit}, got {_shown(value)}")
    return found.astype(np.float64)


def _shown(value: Any) -> str:
    return f"{value!r:.40} ({type(value).__name__})".replace("\n", " ")
