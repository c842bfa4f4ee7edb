"""The hardware edge: three protocols, a clock, and the values that cross it."""

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
