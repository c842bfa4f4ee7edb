"""Rows of the power fit: event rates of kernels measured alone, and of runs of whole workloads."""

import numpy as np

from estimator.engine.kernel_table import kernel_load, kernel_times
from estimator.model.coefficients import COLUMN, CoefficientTable
from estimator.model.power import L2_CREDIT, power_events
from estimator.model.timeline import smooth_maximum
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ
from fitter.latency.runs import LatencyFit, run_kernels, run_seconds
from fitter.power.solver import PowerRows
from fitter.priors import Coefficients
from fitter.rows.columns import KernelRows, WorkloadRows


def workload_power_rows(rows: WorkloadRows, gpu: GpuSpec, latency: LatencyFit) -> PowerRows:
    """Runs with an energy, at the latency predicted by the fit of these rows."""
    measured = np.isfinite(rows.energy_j)
    keep = rows.select(measured)
    runs = run_kernels(keep.workloads, keep.workload_index, keep.clock_mhz(gpu) * HZ_PER_MHZ, gpu, latency.groups)
    gpu_s, host_s = run_seconds(runs, CoefficientTable(latency.groups).vectors, latency.host.launch_s)
    gpu_s = gpu_s * latency.run_scale[measured]
    latency_s = smooth_maximum(gpu_s, host_s, latency.host.overlap_exponent)
    events = power_events(runs.phases, gpu, L2_CREDIT) * runs.count[:, None]
    totals = np.column_stack([np.bincount(runs.run, events[:, i], len(latency_s)) for i in range(events.shape[1])])
    return PowerRows(
        power_w=keep.power_w,
        clock_mhz=keep.clock_mhz(gpu),
        asked_mhz=keep.sm_clock_asked_mhz,
        event_rate=totals / latency_s[:, None],
        warm_ratio=np.full(len(latency_s), np.inf),
        busy=np.minimum(gpu_s / latency_s, 1.0),
        weight=keep.weight,
        relative_std=np.zeros(len(latency_s)),
        kind=np.array([f"model {workload.model_family}" for workload in keep.row_workloads()]),
    )


def kernel_power_rows(rows: KernelRows, gpu: GpuSpec, groups: Coefficients) -> PowerRows | None:
    """Kernels with a trusted power that is no lower bound, at their measured latency; rows of one kernel are adjacent.  None without any.

    Kernels that wait for the host's launches have a small weight, because their run time is unknown.
    """
    usable = np.flatnonzero(np.isfinite(rows.power_w) & ~rows.bounded)
    if not len(usable):
        return None
    keep = rows.select(usable[np.argsort(rows.operator_index[usable], kind="stable")])
    operators = keep.row_operators()
    clock_mhz, warm = keep.clock_mhz(gpu), keep.l2_warm
    times = kernel_times(operators, gpu, groups, sm_clock_mhz=clock_mhz, warm=warm, known=keep.tiles)
    load = kernel_load(times.phases, gpu, times.coefficients, clock_mhz, warm, keep.latency_s)
    return PowerRows(
        power_w=keep.power_w,
        clock_mhz=clock_mhz,
        asked_mhz=keep.sm_clock_asked_mhz,
        event_rate=load.events / keep.latency_s[:, None],
        warm_ratio=load.warm_ratio,
        busy=load.busy,
        # Kernels faster than 1.3 times the host's launch floor may have waited for their launch: their power counts for little.
        weight=np.where(keep.latency_s < 1.3 * times.coefficients[:, COLUMN["floor_s"]], 0.01, 1.0) * keep.weight,
        relative_std=np.where(np.isfinite(keep.power_std_w), keep.power_std_w / keep.power_w, 0.0),
        kind=np.array([f"{o.family}.{o.operator}{'.cuda' if o.cuda_cores else ''}" for o in operators]),
    )


def join_power_rows(parts: list[PowerRows]) -> PowerRows:
    """Rows of both kinds as one problem."""
    return PowerRows(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in PowerRows.__slots__})
