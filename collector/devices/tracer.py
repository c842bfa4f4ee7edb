"""Trace of executed kernels from CUPTI's activity records: name, grid, block, registers, shared memory, time.

The one file that imports CUPTI (the wheel cupti-python).  Without it, or if the driver refuses, nothing is traced and a
campaign continues; rows then have no kernel name.

Source: CUPTI manual, Activity API (CUpti_ActivityKernel); cupti-python, activity_register_callbacks.
"""

import ctypes
import faulthandler
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, Final

from microbench.runners.runner import KernelTracer, TracedKernel

MANGLED: Final = "_Z"
"""Beginning of a C++ symbol (Itanium C++ ABI)."""

NOT_TRACED: Final = "not traced (--no-trace)"
"""Reason given for kernels without a name where tracing is switched off."""

FIRST_TRACE_S: Final = 60.0
"""Time limit of the first trace of a process [s]: a process that hangs inside CUPTI cannot end itself, so it is ended, with the place."""

EARLY_NS: Final = 50_000_000
"""Longest time by which a kernel may seem to start before its trace began, by the clocks of board and host [ns]: well below the sum of
LATE_S, the least age of a record that an earlier trace waited for in vain."""

LATE_S: Final = (0.01, 0.05, 0.2)
"""Waits for records that CUPTI has not handed over yet [s]."""


Work = Callable[[], None]
Trace = tuple[TracedKernel, ...]


class CuptiTracer:
    """Traces kernels through CUPTI; implements microbench.runners.runner.KernelTracer.  `open_tracer` makes it."""

    def __init__(self, cupti: Any) -> None:
        self._cupti = cupti
        self._records: list[tuple[int, TracedKernel]] = []  # with their starts
        self._missing = ""
        self._first = True
        self._begin_ns = 0
        # Size of a buffer, and no limit of its records: thousands fit.
        cupti.activity_register_callbacks(lambda: (8 << 20, 0), self._completed)

    def trace(self, work: Work) -> Trace:
        """The kernels that `work` ran, in the order of their starts; empty if CUPTI refuses.

        Ends the process if the first trace takes longer than FIRST_TRACE_S.
        """
        if not self._first:
            return self._trace(work)
        faulthandler.dump_traceback_later(FIRST_TRACE_S, exit=True)
        try:
            return self._trace(work)
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._first = False

    def _trace(self, work: Work) -> Trace:
        cupti = self._cupti
        self._records.clear()
        try:
            self._begin_ns = int(cupti.get_timestamp()) - EARLY_NS
            cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
        except cupti.cuptiError as error:
            self._missing = f"CUPTI records no kernels: {error}"
            work()
            return ()
        try:
            work()
        finally:
            try:
                for pause_s in (0.0, *LATE_S):
                    time.sleep(pause_s)
                    cupti.activity_flush_all(1)  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: return buffers that are not full as well
                    if self._records:
                        break
                cupti.activity_disable(cupti.ActivityKind.CONCURRENT_KERNEL)
            except cupti.cuptiError as error:
                self._missing = f"CUPTI hands over no records: {error}"
        return tuple(kernel for _, kernel in sorted(self._records, key=itemgetter(0)))

    def missing(self) -> str:
        """Reason why nothing could be traced; "" if it could."""
        return self._missing

    def _completed(self, activities: Sequence[Any]) -> None:
        """Copies the records of a buffer, which is invalid after the return."""
        kernels = (int(self._cupti.ActivityKind.CONCURRENT_KERNEL), int(self._cupti.ActivityKind.KERNEL))
        for record in activities:
            # Before its trace began: an earlier trace waited for it in vain.  Zero: its time could not be collected (CUPTI manual).
            if int(record.kind) in kernels and not 0 < int(record.start) < self._begin_ns:
                self._records.append((int(record.start), _traced(record)))


@dataclass(frozen=True, slots=True)
class NoTracer:
    """Replaces a missing tracer, for this reason; implements microbench.runners.runner.KernelTracer."""

    reason: str

    def trace(self, work: Work) -> Trace:
        """Does the work and returns no kernels."""
        work()
        return ()

    def missing(self) -> str:
        """Reason why nothing is traced."""
        return self.reason


@cache
def open_tracer() -> KernelTracer:
    """CUPTI if it is installed and answers, else a tracer that names the missing part.

    One tracer for the process, because a second one takes the records of the first.
    """
    try:
        from cupti import cupti
    except (ImportError, OSError, RuntimeError) as error:
        return NoTracer(f"CUPTI cannot be loaded ({error}); pip install 'wattprint[cuda13]' or 'wattprint[cuda12]'")
    try:
        return CuptiTracer(cupti)
    except (cupti.cuptiError, RuntimeError) as error:
        return NoTracer(f"CUPTI refuses: {error}; no other profiler may be attached, and its version must fit the driver's")


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


def _traced(record: Any) -> TracedKernel:
    return TracedKernel(
        name=demangled(str(record.name)),
        grid=(int(record.grid_x), int(record.grid_y), int(record.grid_z)),
        block=(int(record.block_x), int(record.block_y), int(record.block_z)),
        registers_per_thread=int(record.registers_per_thread),
        shared_bytes_per_block=int(record.static_shared_memory) + int(record.dynamic_shared_memory),
        duration_s=(int(record.end) - int(record.start)) * 1e-9,
    )
