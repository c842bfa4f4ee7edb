"""The measurement: devices, sensing, correction, campaigns and the dataset format.  `measure` is for use from Python."""

from importlib import import_module
from typing import Any

__all__ = ["measure"]


def __getattr__(name: str) -> Any:
    """`measure` of `collector.measuring.measure`, imported on first use.  Raises ImportError without the extra `collect`."""
    if name in __all__:
        try:
            return getattr(import_module("collector.measuring.measure"), name)
        except ModuleNotFoundError as error:
            raise ImportError(f"{error}; pip install 'wattprint[collect]', in a clone pip install '.[collect]'") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
