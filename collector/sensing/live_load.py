"""Loads that are switched on for a chosen time, to characterise a sensor: a chain of multiply-adds, or a library's kernel.

The duration of the chain follows from a regression over its turns (`microbench.loads.square_wave`), so that one launch
is one high level, without gaps.  If it cannot be assembled or run, a library's kernel is launched repeatedly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Final, Protocol

import numpy as np

from collector.devices.protocols import Bench, PreparedKernel, limiting_reasons
from collector.errors import RunnerError, SensorError
from collector.sampling import Sampler
from estimator.vocabulary.workload import Operator, make_operator
from microbench.errors import MicrobenchError
from microbench.loads.square_wave import DurationLine, WaveCode, fit_duration, wave_code
from microbench.toolchain.compile import find_toolchain

CALIBRATION: Final = (1, 2, 4, 8)
"""Lengths of the runs for the regression of the duration, in launches of some milliseconds (`microbench.loads.generated.LAUNCH_S`)."""
WARM_RUNS: Final = 8
"""Number of runs of the longest of them beforehand: clocks rise, and the power limit takes effect."""
SHARES: Final = (1.0, 0.75, 0.5)
"""Tried shares of the SMs, until the board runs the load without being limited."""
LOAD_ELEMENTS: Final = 2**25
"""Size of the two tensors that the library's load adds: a large step in power that no power limit clips."""
PRECISIONS: Final = ("fp32", "fp16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyLoad:
    """A prepared load: `run` switches it on once and returns the host's stamps of its start and end [ns].

    `share` of the SMs are busy meanwhile.
    """

    share: float
    run: Callable[[], tuple[int, int]]


class LiveLoad(Protocol):
    """Makes loads on a bench."""

    @property
    def remark(self) -> str:
        """The load in words."""

    def ready(self, duration_s: float, share: float | None = None) -> ReadyLoad | None:
        """A load of a duration on a share of the SMs (None: as many as the board runs without being limited).

        None if no such share can be kept busy.
        """


def open_live_load(bench: Bench, sampler: Sampler) -> LiveLoad:
    """The chain if it runs on this bench, else a library's kernel.  Raises SensorError if neither runs."""
    try:
        return ChainLoad(bench, sampler, wave_code(bench.gpu_spec, find_toolchain()))
    except (MicrobenchError, RunnerError) as error:
        return LibraryLoad(bench, str(error))


class ChainLoad:
    """The chain of multiply-adds; implements LiveLoad."""

    def __init__(self, bench: Bench, sampler: Sampler, code: WaveCode) -> None:
        self._bench = bench
        self._code = code
        self._lines: dict[float, DurationLine] = {}
        self.share = next((share for share in SHARES if self._unlimited(share, sampler)), SHARES[-1])

    @property
    def remark(self) -> str:
        """The kernel and the regression line of its duration."""
        line = self._line(self.share)
        said = f"{line.intercept_s * 1e6:.3g} µs + {line.slope_s * 1e9:.4g} ns a turn, scatter {line.residual_s:.2%}"
        return f"a chain of multiply-adds ({self._code.kernel.name}) on {self.share:.0%} of the SMs; its duration: {said}"

    def ready(self, duration_s: float, share: float | None = None) -> ReadyLoad:
        """One launch of the duration, or several of at most 0.5 s.  Raises RunnerError, LaunchError."""
        wanted = self.share if share is None else share
        pieces = int(np.ceil(duration_s / 0.5))
        prepared = self._prepared(self._line(wanted).iterations(duration_s / pieces), wanted)

        def run() -> tuple[int, int]:
            records = [self._bench.runner.run(prepared, 1) for _ in range(pieces)]
            return records[0].start_ns, records[-1].end_ns

        return ReadyLoad(share=min(1.0, prepared.grid[0] / self._bench.gpu_spec.num_sms), run=run)

    def _line(self, share: float) -> DurationLine:
        """Duration over turns on a share of the SMs, fitted if not known yet."""
        if share not in self._lines:
            rough = self._code.load(1, share).sized(self._code.gpu).launch.iterations
            counts = [length * rough for length in CALIBRATION]
            warm = self._prepared(counts[-1], share)
            for _ in range(WARM_RUNS):
                self._bench.runner.run(warm, 1)
            times = [float(np.mean(self._bench.runner.run(self._prepared(count, share), 1).segment_s)) for count in counts]
            self._lines[share] = fit_duration(counts, times)
        return self._lines[share]

    def _prepared(self, iterations: int, share: float) -> PreparedKernel:
        return self._bench.runner.prepare_generated(self._code.load(iterations, share))

    def _unlimited(self, share: float, sampler: Sampler) -> bool:
        """Whether the board runs the chain on a share of the SMs without being limited by power or heat."""
        sampler.drain()
        self._line(share)
        masks = sampler.drain().states.throttle_mask
        return not (len(masks) and limiting_reasons(int(np.bitwise_or.reduce(masks))))


class LibraryLoad:
    """A library's kernel, launched back to back; `reason` states why it replaces the chain.  Implements LiveLoad."""

    def __init__(self, bench: Bench, reason: str) -> None:
        self._bench = bench
        self._reason = reason
        self._full = bench.runner.prepare(load_operator(bench))
        self._launch_s: dict[PreparedKernel, float] = {}

    @property
    def remark(self) -> str:
        """The kernel and the reason for it."""
        return f"{self._full.kernel_name or 'an addition'} launched back to back ({self._reason})"

    def ready(self, duration_s: float, share: float | None = None) -> ReadyLoad | None:
        """Launches that together last this long.  Raises RunnerError."""
        full = PartialLoad(prepared=self._full, share=1.0)
        found = full if share is None or share >= 1.0 else partial_load(self._bench, share)
        if found is None:
            return None
        prepared = found.prepared
        if prepared not in self._launch_s:
            self._launch_s[prepared] = _launch_time(self._bench, prepared)
        launches = max(1, round(duration_s / self._launch_s[prepared]))

        def run() -> tuple[int, int]:
            record = self._bench.runner.run(prepared, launches)
            return record.start_ns, record.end_ns

        return ReadyLoad(share=found.share, run=run)


def load_operator(bench: Bench) -> Operator:
    """A kernel that draws much power, but stays below any limit, on every board.  Raises SensorError if it cannot run."""
    operator = make_operator("elementwise", "add", "fp32", elements=LOAD_ELEMENTS, reads=2 * LOAD_ELEMENTS)
    if not bench.runner.supports(operator):
        raise SensorError(f"this board cannot add {LOAD_ELEMENTS} numbers; there is no load to characterise its sensor with")
    return operator


def _launch_time(bench: Bench, prepared: PreparedKernel) -> float:
    """Time of one launch at the current clock [s]."""
    launches = 3
    while True:
        record = bench.runner.run(prepared, launches)
        launch_s = float(np.mean(record.segment_s))
        if launch_s * launches >= 0.05:
            return launch_s
        launches = int(np.ceil(1.2 * 0.05 / launch_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialLoad:
    """A kernel whose blocks occupy `share` of the SMs, one block each."""

    prepared: PreparedKernel
    share: float


def partial_load(bench: Bench, share: float) -> PartialLoad | None:
    """A softmax with one row for each SM to keep busy; None if the board runs none whose grid covers about that share.

    The share follows from the grid that the runner launches.
    """
    sms = bench.gpu_spec.num_sms
    # Tried row lengths of a softmax, longest first: libraries give a row to one block, and a long row takes much longer than its launch.
    for length in (65536, 16384, 4096):
        for precision in PRECISIONS:
            operator = make_operator("softmax", "softmax", precision, rows=max(1, round(share * sms)), dim=length)
            if not bench.runner.supports(operator):
                continue
            try:
                prepared = bench.runner.prepare(operator)
            except RunnerError:
                continue
            covered = min(1.0, prod(prepared.grid) / sms)
            if abs(covered - share) < 0.02 + 1.0 / sms:
                return PartialLoad(prepared=prepared, share=covered)
    return None
