"""The hardware edge: three protocols, a clock, and the values that cross it.

The names are imported on first use: the clock guard and the clock helper, which run beside a measurement or with
privilege, import modules of this package without numpy.
"""

TYPE_CHECKING = False
"""Replaces `typing.TYPE_CHECKING`, to avoid loading that module."""

if TYPE_CHECKING:
    from collector.devices.protocols import (
        THROTTLE_BITS,
        Clock,
        EnergyReading,
        Gpu,
        GpuIdentity,
        GpuState,
        KernelRunner,
        LaunchRecord,
        PowerReadings,
        PowerSensor,
        PreparedKernel,
        StateReadings,
        limiting_reasons,
    )

__all__ = [
    "THROTTLE_BITS",
    "Clock",
    "EnergyReading",
    "Gpu",
    "GpuIdentity",
    "GpuState",
    "KernelRunner",
    "LaunchRecord",
    "PowerReadings",
    "PowerSensor",
    "PreparedKernel",
    "StateReadings",
    "limiting_reasons",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from collector.devices import protocols

    value: object = getattr(protocols, name)
    globals()[name] = value
    return value
