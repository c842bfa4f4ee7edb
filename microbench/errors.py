"""The load's error tree.

MicrobenchError                what could not be done, with its remedy
├── UnsupportedError           an architecture lacks what a kernel needs
├── CompileError               no compiler, or one that refuses a text
├── InspectionError            machine code that is not what a kernel promises
├── LaunchError                a launch that does not fit a kernel or a GPU
├── ResultError                a kernel's numerical result is not the right one
├── DeviceMemoryError          operands that do not fit into the device's memory
├── KernelFailedError          a kernel that the library or the device refused; the device can go on
└── DeviceLostError            the device, or this process's context on it, is lost

A message is one line: the fault, the value, its limit and the remedy.
"""


class MicrobenchError(Exception):
    """Something could not be done; the message is one line and complete."""


class UnsupportedError(MicrobenchError):
    """An architecture lacks what a kernel needs."""


class CompileError(MicrobenchError):
    """No compiler, or one that refuses a text."""


class InspectionError(MicrobenchError):
    """Machine code that is not what a kernel promises."""


class LaunchError(MicrobenchError):
    """A launch that does not fit a kernel or a GPU."""


class ResultError(MicrobenchError):
    """A kernel's numerical result is not the right one."""


class DeviceMemoryError(MicrobenchError):
    """Operands that do not fit into the device's memory."""


class KernelFailedError(MicrobenchError):
    """A kernel that the library or the device refused; the device can go on."""


class DeviceLostError(MicrobenchError):
    """The device, or this process's context on it, is lost; only a new process can go on."""
