"""One kernel at one operating point: run it long enough for the sensor, and make a row of it."""

import json
from typing import Final

import numpy as np

from collector.campaigns.files import MeasurementSettings
from collector.campaigns.outcome import Run, outcome_columns
from collector.dataset.schema import Row, operator_columns
from collector.devices.protocols import Bench, GpuState, PreparedKernel
from collector.sampling import SECONDS_PER_NS, Sampler
from collector.sensing.calibration import SensorCalibration
from estimator.display.text import known
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator
from microbench.loads.copies import CopyLoad
from microbench.loads.generated import LEVELS, GeneratedLoad, Load
from microbench.sizing import launches_for

TIMED_GAP_S: Final = 0.05
"""Rest before a time-only run: power need not fall back to rest [s]."""
POWER_COLUMNS: Final = ("power_raw_w", "power_w", "power_std_w", "energy_j", "energy_std_j", "energy_counter_j", "window_s")
POWER_DOUBTS: Final = frozenset(
    {
        "power_missing", "power_absurd", "sensor_stuck", "few_samples", "short_window", "drifting", "unsettled", "counter_disagrees",
        "counter_absurd",
    }
)  # fmt: skip
"""Doubts about power or energy, which the row of a time-only point does not have."""


@frozen
class Point:
    """A kernel at an operating point; `sm_clock_mhz` None leaves the clock alone.  `row_id` names the result.

    With `idle_before` the board rests before it long enough to measure its power at rest.  `load` is a generated kernel or a copy, which
    then replaces a library's kernel; `operator` names it.  An `anchor` is repeated throughout a campaign to show drift; a `timed_only`
    point has no power measurement.  `transpose` is the layout of a matrix product's inputs, "" the natural one.
    """

    row_id: str
    operator: Operator
    l2_state: str
    sm_clock_mhz: float | None
    trial: int
    seed: int
    idle_before: bool = False
    anchor: bool = False
    load: Load | None = None
    timed_only: bool = False
    transpose: str = ""


def measure_kernel(bench: Bench, sampler: Sampler, point: Point, settings: MeasurementSettings, calibration: SensorCalibration) -> Row:
    """Row of a kernel run at the current clock; doubts are in its flags, bad data raise no error.

    Raises RunnerError if the kernel cannot run, DeviceError if the board fails.
    """
    load = point.load
    if load is None:
        prepared = bench.runner.prepare(point.operator, point.l2_state, point.transpose)
    else:
        prepared = bench.runner.prepare_generated(load)
    started_unix_s, run, state = _run(bench, sampler, prepared, point, settings, calibration)
    doubts = {
        "kernel_untraced": prepared.untraced,
        "result_wrong": prepared.corrupted,
        "low_confidence": isinstance(load, GeneratedLoad) and load.launch.mode == "single",
        "shared_board": bool(state.other_processes),
    }
    given = [flag for flag, doubt in doubts.items() if doubt]
    outcome = outcome_columns(run, settings, calibration, generated=load is not None, doubts=given)
    if point.timed_only:
        flags = ["short_window", *(flag for flag in outcome["flags"] if flag not in POWER_DOUBTS)]
        outcome |= {**dict.fromkeys(POWER_COLUMNS), "samples": 0, "flags": flags}
    row: Row = {
        "row_id": point.row_id,
        **(operator_columns(point.operator) if load is None else load_columns(load)),
        **_kernel_columns(prepared),
        "gpu": bench.gpu_spec.name,
        "gpu_uuid": bench.gpu.identity().uuid,
        "sm_clock_mhz": point.sm_clock_mhz,
        "memory_clock_mhz": state.memory_clock_mhz,
        **outcome,
        "started_unix_s": started_unix_s,
        "trial": point.trial,
        "seed": point.seed,
    }
    return dict(known(row))


def _run(
    bench: Bench, sampler: Sampler, prepared: PreparedKernel, point: Point, settings: MeasurementSettings, calibration: SensorCalibration
) -> tuple[float, Run, GpuState]:
    """Rest, range, run: the time of day before [s since 1970], the run, and the board after it."""
    sampler.drain()
    gap_s = min(settings.gap_s, TIMED_GAP_S) if point.timed_only else settings.gap_s
    bench.clock.wait(settings.idle_s if point.idle_before else gap_s)
    rest = sampler.drain()
    started_unix_s = bench.clock.unix_s()
    launch_s = ranged_launch_s(bench, prepared, settings.ranging_s)
    before = sampler.energy()
    run_s = settings.timed_s if point.timed_only else settings.planned_run_s(calibration)
    record = bench.runner.run(prepared, launches_for(run_s, launch_s))
    after = sampler.energy()
    state = bench.gpu.state()
    run = Run(
        trace=sampler.drain(),
        record=record,
        counter=(before, after),
        ranging_s=launch_s,
        sm_clock_mhz=point.sm_clock_mhz,
        power_limit_w=state.power_limit_w,
        rest=rest if point.idle_before else None,
    )
    return started_unix_s, run, state


def ranged_launch_s(bench: Bench, prepared: PreparedKernel, ranging_s: float) -> float:
    """Time of a launch from short runs that grow until they last `ranging_s` [s]."""
    launches = 3
    while True:
        record = bench.runner.run(prepared, launches)
        launch_s = float(np.mean(record.segment_s))
        if not launch_s > 0:
            return (record.end_ns - record.start_ns) * SECONDS_PER_NS / launches
        if launch_s * launches >= ranging_s:
            return launch_s
        launches = min(20 * launches, launches_for(1.2 * ranging_s, launch_s))  # the first launch may be slow


def _kernel_columns(prepared: PreparedKernel) -> Row:
    """Columns of the kernel that the library chose; zeros that mean "none" become null."""
    plain = ("library", "kernel_name", "registers_per_thread", "blocks_per_sm", "tile_m", "tile_n", "tile_k", "stages", "transpose")
    return {
        **{name: getattr(prepared, name) or None for name in plain},
        **{f"grid_{axis}": size or None for axis, size in zip("xyz", prepared.grid, strict=True)},
        **{f"block_{axis}": size or None for axis, size in zip("xyz", prepared.block, strict=True)},
        "shared_bytes_per_block": None if prepared.untraced else prepared.shared_bytes_per_block,
        "split_k": None if prepared.untraced else prepared.split_k or None,
        "l2_state": prepared.l2_state,
    }


def load_columns(load: Load) -> Row:
    """Family, operator and work of a generated kernel or a copy by column."""
    operator = load.operator
    named = {
        "family": operator.family,
        "operator": operator.operator,
        "precision": operator.precision,
        "cuda_cores": False,
        "link": load.link or None,
    }
    if isinstance(load, CopyLoad):
        return {**named, "instruction": load.instruction, "data_pattern": "random", "link_bytes": float(load.bytes_moved)}
    kernel, launch, module = load.kernel, load.launch, load.module
    counts = load.transactions()
    return {
        **named,
        "instruction": kernel.instruction,
        "launch_mode": launch.mode,
        "data_pattern": launch.pattern,
        "unroll": kernel.unroll,
        "chains": kernel.chains,
        "iterations": launch.iterations,
        "active_threads": launch.active_threads,
        "active_warps": load.active_warps,
        "loop_opcodes": json.dumps(dict(load.entry.body), separators=(",", ":")),
        "loop_operations": json.dumps(dict(kernel.work.operations), separators=(",", ":")),
        **{f"{level}_transactions": counts[level] for level in LEVELS},
        "assembler": f"{module.compiler} -{module.level} {module.architecture}",
        "cubin_sha256": module.digest,
        "ptx_sha256": kernel.digest(),
        "link_bytes": load.link_bytes() if load.link else None,
    }
