"""The collector's errors; their tree is drawn in `collector.devices.errors`, at the bottom of the package."""

from collector.devices.errors import *  # noqa: F403
