"""The measurement: devices, sensing, correction, campaigns and the dataset format.  `measure` is for use from Python."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collector.measuring.measure import measure as measure

__all__ = ["measure"]


def __getattr__(name: str) -> Any:
    """`measure`, imported on first use: commands that measure nothing do not load what it needs."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from collector.measuring.measure import measure

    return measure
