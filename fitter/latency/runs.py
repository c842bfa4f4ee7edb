"""Latency coefficients from runs of whole workloads.

A run's time is a sum over its kernels, joined with the host's launch time, so a run is one row of the same problem
as a kernel measured alone.  Few runs cannot determine many coefficients: similar coefficients are tied, and all start
from priors or from the fit of measured kernels of this GPU.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from estimator.bundle.content import OVERLAP_EXPONENT
from estimator.model.coefficients import COLUMN, TIED_COEFFICIENTS, CoefficientTable, group_key, parameter_targets
from estimator.model.coefficients import HOST_LAUNCH as LAUNCH_NAME
from estimator.model.coefficients import HOST_OVERLAP as OVERLAP_NAME
from estimator.model.lowering import lower
from estimator.model.phases import Phases
from estimator.model.power import tensor_rate
from estimator.model.timeline import kernel_seconds, smooth_maximum
from estimator.uncertainty.laboratory import ELSEWHERE_STD
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array, IntArray
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Workload
from fitter.latency.objective import solve
from fitter.priors import (
    FILL_FLOP_PER_CLOCK,
    GROUP_PRIORS,
    HOST_LAUNCH,
    HOST_OVERLAP,
    IDENTIFIED_SHRINKAGE,
    PERSISTENT,
    PERSISTENT_ARCHITECTURES,
    Coefficients,
    Scales,
)
from fitter.rows.columns import WorkloadRows

MATRIX_GROUPS: Final = TIED_COEFFICIENTS["prologue"][0]
STREAM_GROUPS: Final = TIED_COEFFICIENTS["stream"][0]

RUN_SCALE: Final = 0.06
"""Ordinary relative error of a run; errors well beyond it count linearly."""

WIDTHS: Final = {
    LAUNCH_NAME: HOST_LAUNCH.width,
    OVERLAP_NAME: HOST_OVERLAP.width,
    "math.gemm": 0.2,
    "math.bmm": 0.25,
    "math.conv": 0.3,
    "dram": 0.1,
    "stream": 0.15,
    "memory_latency": 0.5,
    "issue": 0.25,
    "epsilon": 0.4,
    "prologue": 0.4,
}
"""Parameters that runs of whole workloads can determine, in the order of TIED_COEFFICIENTS, and their prior widths [ln]."""


@frozen
class RunKernels:
    """The kernels of all runs, one after the other.

    phases (k, ·); group (k,) index of the coefficient group; run (k,) index of the run; count (k,) launches in an iteration of that
    run; clock_hz (k,); host_share (r,) framework operators per iteration, weighted by their launch cost.
    """

    phases: Phases
    group: IntArray
    run: IntArray
    count: Array
    clock_hz: Array
    host_share: Array


class Host(NamedTuple):
    """Launch cost of one framework operator [s], and the sharpness of the maximum of launch time and GPU time [1]."""

    launch_s: float
    overlap_exponent: float


@frozen
class LatencyFit:
    """Coefficients by group, with their covariance.

    widths                              prior widths of the parameters
    log_shift, covariance               ln of the factor on their start, shape (p,), and its covariance
    scales, run_scale                   ln(scale) of each collection and its standard deviation; the scale of each run, shape (r,)
    """

    groups: Coefficients
    host: Host
    widths: Mapping[str, float]
    log_shift: Array
    covariance: Array
    scales: Scales
    run_scale: Array

    @property
    def ln_std(self) -> dict[str, float]:
        """Standard deviation of each parameter."""
        return dict(zip(self.widths, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))

    @property
    def identified(self) -> dict[str, bool]:
        """Whether the data determine a parameter, not its prior."""
        return {name: std < IDENTIFIED_SHRINKAGE * self.widths[name] for name, std in self.ln_std.items()}


def prior_groups(gpu: GpuSpec | None = None) -> dict[str, dict[str, float]]:
    """Every group's coefficients at the centre of its priors; without a GPU, those of the A10's generation."""
    groups = {group: {name: prior.centre for name, prior in priors.items()} for group, priors in GROUP_PRIORS.items()}
    if gpu is None:
        return groups
    for group in (*MATRIX_GROUPS, "moe"):
        if gpu.architecture in PERSISTENT_ARCHITECTURES:
            groups[group] |= {name: prior.centre for name, prior in PERSISTENT.items()}
        elif gpu.tensor_flop_per_clock:
            groups[group]["prologue"] *= tensor_rate(gpu) / FILL_FLOP_PER_CLOCK
    return groups


def fit_latency(
    rows: WorkloadRows,
    gpu: GpuSpec,
    measured_groups: Coefficients | None = None,
    scales: Scales | None = None,
) -> LatencyFit:
    """Fit coefficients to runs of whole workloads on one GPU.

    measured_groups: coefficients of groups whose kernels were measured alone.  Tiles are chosen with the starting coefficients.
    scales: of the collections of these kernels, if this board ran them: the runs then adjust them within a third of the usual width.
    Every other collection of runs has a scale on GPU time of its own, unless it is the only one of all.
    """
    measured = measured_groups or {}
    start = prior_groups(gpu) | {group: dict(values) for group, values in measured.items()}
    widths = {name: width * (0.3 if scales and any(parameter_targets(name, measured)) else 1.0) for name, width in WIDTHS.items()}
    runs = run_kernels(rows.workloads, rows.workload_index, rows.clock_mhz(gpu) * HZ_PER_MHZ, gpu, start)
    known, names = dict(scales or {}), rows.row_collections()
    free = [name for name in sorted(set(names)) if name not in known]
    # Kernels of another laboratory are the reference; two collections of runs have scales about their mean.
    width = ELSEWHERE_STD["latency"] / (1.0 if known else np.sqrt(2.0))
    free = free if known or len(free) > 1 else []
    fixed = np.array([known[name][0] if name in known else 0.0 for name in names])
    belongs = np.array([[name == one for one in free] for name in names], dtype=np.float64).reshape(len(names), len(free))
    problem = _problem(runs, start, fixed, belongs)
    count = len(widths)
    maths = [[start[group]["math"] for group, one in parameter_targets(name, start) if one == "math"] for name in widths]
    least = [-max(np.log(min(found)), 0.0) if found else -np.inf for found in maths]  # no product is faster than the rate
    solution = solve(
        lambda shift: (problem.log_seconds(shift), None),
        np.log(rows.latency_s),
        np.array([*widths.values(), *[width] * len(free)]),
        scale=RUN_SCALE,
        weight=rows.weight,
        limits=(np.array([*least, *[-np.inf] * len(free)]), np.inf),
    )
    fitted, host = shifted(start, solution.log_shift[:count])
    std = np.sqrt(np.diag(solution.covariance)[count:])
    known |= dict(zip(free, zip(solution.log_shift[count:].tolist(), std.tolist(), strict=True), strict=True))
    return LatencyFit(
        groups=fitted,
        host=host,
        widths=widths,
        log_shift=solution.log_shift[:count],
        covariance=solution.covariance[:count, :count],
        scales=known | {name: (0.0, 0.0) for name in names if name not in known},
        run_scale=problem.run_scale(solution.log_shift),
    )


def run_kernels(workloads: Sequence[Workload], index: IntArray, clock_hz: Array, gpu: GpuSpec, groups: Coefficients) -> RunKernels:
    """Kernels of runs: run i executes workloads[index[i]] at clock_hz[i]."""
    used, own = np.unique(index, return_inverse=True)
    operators = [operator for i in used for operator in workloads[i].operators]
    table = CoefficientTable(groups)
    coefficients, served = table.rows([group_key(operator) for operator in operators])
    ends = np.cumsum([len(workloads[i].operators) for i in used])
    kernels = np.split(np.arange(len(operators)), ends[:-1])
    places = [kernels[i] for i in own]
    place, run = np.concatenate(places), np.repeat(np.arange(len(places)), [len(own) for own in places])
    count = np.concatenate([workloads[i].counts for i in used])[place]
    share = np.array([operator.host_share for operator in operators])[place]
    return RunKernels(
        phases=lower(operators, gpu, coefficients).select(place),
        group=np.array([table.number[name] if name else -1 for name in served], dtype=np.int64)[place],
        run=run,
        count=count,
        clock_hz=clock_hz[run],
        host_share=np.bincount(run, share * count, len(places)).astype(np.float64),
    )


def run_seconds(runs: RunKernels, table: Array, host_launch_s: float) -> tuple[Array, Array]:
    """GPU time and host launch time of each run [s], shapes (r,)."""
    seconds = kernel_seconds(runs.phases, table[runs.group], runs.clock_hz)
    gpu_s: Array = np.bincount(runs.run, seconds * runs.count, len(runs.host_share)).astype(np.float64)
    return gpu_s, host_launch_s * runs.host_share


def shifted(start: Coefficients, log_shift: Array) -> tuple[dict[str, dict[str, float]], Host]:
    """Groups and host with every parameter multiplied by its factor."""
    groups = {group: dict(values) for group, values in start.items()}
    for parameter, factor in zip(WIDTHS, np.exp(log_shift).tolist(), strict=True):
        for group, name in parameter_targets(parameter, groups):
            if name in groups[group]:
                groups[group][name] *= factor
    return groups, host_of(log_shift)


def host_of(log_shift: Array) -> Host:
    """The host with its parameters multiplied by their factors."""
    launch, overlap = np.exp(log_shift[:2]).tolist()
    sharpness = min(max(HOST_OVERLAP.centre * overlap, OVERLAP_EXPONENT.low), OVERLAP_EXPONENT.high)
    return Host(launch_s=HOST_LAUNCH.centre * launch, overlap_exponent=sharpness)


@frozen
class _Problem:
    """Runs, and the map from fitted parameters to coefficients.

    base (g, c): starting coefficients of all groups; moves (p, g, c): 1 where a parameter multiplies a coefficient.
    fixed (r,): known ln(scale) of each run; belongs (r, s): 1 for the run's collection among those with a fitted scale.
    """

    runs: RunKernels
    base: Array
    moves: Array
    fixed: Array
    belongs: Array

    def run_scale(self, shift: Array) -> Array:
        """Scale of each run's collection on GPU time [1], shape (r,)."""
        return np.exp(self.fixed + self.belongs @ shift[len(self.moves) :])

    def log_seconds(self, shift: Array) -> Array:
        """ln of the time of each run, shape (r,).

        shift (p + s,): ln of the factors, then of the scales of collections.
        """
        table = self.base * np.exp(np.tensordot(shift[: len(self.moves)], self.moves, axes=1))
        host = host_of(shift)
        gpu_s, host_s = run_seconds(self.runs, table, host.launch_s)
        return np.log(smooth_maximum(gpu_s * self.run_scale(shift), host_s, host.overlap_exponent))


def _problem(runs: RunKernels, start: Coefficients, fixed: Array, belongs: Array) -> _Problem:
    table = CoefficientTable(start)
    moves = np.zeros((len(WIDTHS), *table.vectors.shape))
    for i, parameter in enumerate(WIDTHS):
        for group, name in parameter_targets(parameter, start):
            moves[i, table.number[group], COLUMN[name]] = 1.0
    return _Problem(runs=runs, base=table.vectors, moves=moves, fixed=fixed, belongs=belongs)
