"""Trace of executed kernels from CUPTI's activity records: name, grid, block, registers, shared memory, time.

The one file that imports CUPTI (the wheel cupti-python).  Without it, or if the driver refuses, nothing is traced and a
campaign continues; rows then have no kernel name.

Source: CUPTI manual, Activity API (CUpti_ActivityKernel); cupti-python, activity_register_callbacks.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final

from microbench.runners.runner import KernelTracer, TracedKernel

MANGLED: Final = "_Z"
"""Beginning of a C++ symbol (Itanium C++ ABI)."""


class CuptiTracer:
    """Traces kernels through CUPTI; implements microbench.runners.runner.KernelTracer.  `open_tracer` makes it."""

    def __init__(self, cupti: Any) -> None:
        self._cupti = cupti
        self._records: list[TracedKernel] = []
        self._starts: list[int] = []
        self._missing = ""
        cupti.activity_register_callbacks(_buffer_requested, self._completed)

    def trace(self, work: Callable[[], None]) -> tuple[TracedKernel, ...]:
        """The kernels that `work` ran, in the order of their starts; empty if CUPTI refuses."""
        cupti = self._cupti
        self._records.clear()
        self._starts.clear()
        try:
            cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
        except cupti.cuptiError as error:
            self._missing = f"CUPTI records no kernels: {error}"
            work()
            return ()
        try:
            work()
        finally:
            try:
                cupti.activity_flush_all(1)  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: return buffers that are not full as well
                cupti.activity_disable(cupti.ActivityKind.CONCURRENT_KERNEL)
            except cupti.cuptiError as error:
                self._missing = f"CUPTI hands over no records: {error}"
        order = sorted(range(len(self._starts)), key=self._starts.__getitem__)
        return tuple(self._records[i] for i in order)

    def missing(self) -> str:
        """Reason why nothing could be traced; "" if it could."""
        return self._missing

    def _completed(self, activities: Sequence[Any]) -> None:
        """Copies the records of a buffer, which is invalid after the return."""
        kernels = (int(self._cupti.ActivityKind.CONCURRENT_KERNEL), int(self._cupti.ActivityKind.KERNEL))
        for record in activities:
            if int(record.kind) in kernels:
                self._starts.append(int(record.start))
                self._records.append(_traced(record))


class NoTracer:
    """Replaces a missing tracer; implements microbench.runners.runner.KernelTracer."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def trace(self, work: Callable[[], None]) -> tuple[TracedKernel, ...]:
        """Does the work and returns no kernels."""
        work()
        return ()

    def missing(self) -> str:
        """Reason why nothing is traced."""
        return self._reason


def open_tracer(cupti: Any = None) -> KernelTracer:
    """CUPTI if it is installed and answers, else a tracer that names the missing part.  `cupti` is the module (None: import it)."""
    try:
        module = _load_cupti() if cupti is None else cupti
    except (ImportError, OSError, RuntimeError) as error:
        return NoTracer(f"CUPTI cannot be loaded ({error}); pip install 'wattprint[cuda13]' or 'wattprint[cuda12]'")
    try:
        return CuptiTracer(module)
    except (module.cuptiError, RuntimeError) as error:
        return NoTracer(f"CUPTI refuses: {error}; no other profiler may be attached, and its version must fit the driver's")


def _load_cupti() -> Any:
    from cupti import cupti

    return cupti


def demangled(name: str) -> str:
    """A C++ symbol in readable form; other names, and those that the C++ library cannot read, unchanged."""
    if not name.startswith(MANGLED):
        return name
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        free = ctypes.CDLL(None).free
    except OSError:
        return name
    demangle = library.__cxa_demangle
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free.argtypes = [ctypes.c_void_p]
    status = ctypes.c_int()
    address = demangle(name.encode(), None, None, ctypes.byref(status))
    if not address or status.value:
        return name
    text = ctypes.string_at(address).decode(errors="replace")
    free(address)
    return text


def _buffer_requested() -> tuple[int, int]:
    """Size of an activity buffer and its greatest number of records."""
    return 8 << 20, 0  # thousands of kernel records; as many of them as fit


def _traced(record: Any) -> TracedKernel:
    return TracedKernel(
        name=demangled(str(record.name)),
        grid=(int(record.grid_x), int(record.grid_y), int(record.grid_z)),
        block=(int(record.block_x), int(record.block_y), int(record.block_z)),
        registers_per_thread=int(record.registers_per_thread),
        shared_bytes_per_block=int(record.static_shared_memory) + int(record.dynamic_shared_memory),
        duration_s=(int(record.end) - int(record.start)) * 1e-9,
    )
