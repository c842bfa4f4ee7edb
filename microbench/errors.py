"""The load's error tree.

MicrobenchError                an operation failed; the message names the remedy
├── UnsupportedError           an architecture lacks a feature that a kernel needs
├── CompileError               no compiler, or one that refuses a text
├── LaunchError                a launch that does not fit a kernel or a GPU
├── ResultError                a kernel's numerical result is wrong
├── KernelFailedError          the library or the device refused a kernel or its memory; the device is still usable
└── DeviceLostError            the device, or this process's context on it, is lost

A message is one line: the fault, the value, its limit and the remedy.
"""


class MicrobenchError(Exception):
    """An operation failed; the message is one complete line."""


class UnsupportedError(MicrobenchError):
    """An architecture lacks a feature that a kernel needs."""


class CompileError(MicrobenchError):
    """No compiler, or one that refuses a text."""


class LaunchError(MicrobenchError):
    """A launch that does not fit a kernel or a GPU."""


class ResultError(MicrobenchError):
    """A kernel's numerical result is wrong."""


class KernelFailedError(MicrobenchError):
    """The library or the device refused a kernel or its memory; the device is still usable."""


class DeviceLostError(MicrobenchError):
    """The device, or this process's context on it, is lost; only a new process can use it again."""
