"""The collector's errors; `collector.devices.errors`, at the bottom of the package, shows their tree."""

from collector.devices.errors import *  # noqa: F403
