"""Latency, power and energy of GPU work: the equations and the bundle format.

    from estimator import load_bundle, read_workload, estimate

Names are fetched on first use: importing one equation does not load the others.  Nothing is imported here, since every
command passes here before it can answer to an interruption.
"""

TYPE_CHECKING = False
"""As `typing.TYPE_CHECKING`, which would cost loading that module."""

if TYPE_CHECKING:
    from estimator.bundle import load_bundle
    from estimator.formats import read_workload
    from estimator.prediction import estimate

__version__ = "0.1.0"

__all__ = ["__version__", "estimate", "load_bundle", "read_workload"]

_HOME = {
    "estimate": "estimator.prediction",
    "load_bundle": "estimator.bundle",
    "read_workload": "estimator.formats",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
