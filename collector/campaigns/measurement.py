"""One kernel at one operating point: run it for as long as the sensor needs, and make a row of it."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from collector.bench import Bench
from collector.campaigns.generated_rows import load_columns
from collector.campaigns.outcome import MeasurementSettings, known, outcome_columns
from collector.campaigns.timed_point import TIMED_GAP_S, TIMED_RUN_S, without_power
from collector.dataset import operator_columns
from collector.dataset.traces import REST, RUN, TraceRecord
from collector.devices.protocols import GpuState, PreparedKernel
from collector.sampling import SECONDS_PER_NS, Sampler, Trace
from collector.sensing.calibration import SensorCalibration
from estimator.workload import Operator
from microbench.loads.copies import CopyLoad
from microbench.loads.generated import GeneratedLoad
from microbench.sizing import launches_for

__all__ = ["MeasuredKernel", "MeasurementSettings", "Point", "measure_kernel", "measure_traced", "ranged_launch_s"]

RANGING_GROWTH: Final = 20
"""Launches of the ranging run grow by at most this factor a step: the first launch may be slow."""
FIRST_RANGING_LAUNCHES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A kernel at an operating point; `sm_clock_mhz` None leaves the clock alone.  `row_id` names the result.

    With `idle_before` the board rests before it long enough to tell its power at rest.  `load` is a generated kernel or a copy, which then
    runs in place of a library's; `operator` names it.  An `anchor` is repeated all through a campaign to show drift;
    of a point that is `timed_only` no power is measured.  `transpose` is the layout of a matrix product's inputs, "" the natural one.
    """

    row_id: str
    operator: Operator
    l2_state: str
    sm_clock_mhz: float | None
    trial: int
    seed: int
    idle_before: bool = False
    anchor: bool = False
    load: GeneratedLoad | CopyLoad | None = None
    timed_only: bool = False
    transpose: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKernel:
    """The row of a point, and the traces that it was made from: the run, and the rest before it where its power was asked for."""

    row: dict[str, Any]
    traces: tuple[TraceRecord, ...]


def measure_kernel(
    bench: Bench, sampler: Sampler, point: Point, settings: MeasurementSettings, calibration: SensorCalibration
) -> dict[str, Any]:
    """The row of `measure_traced`."""
    return measure_traced(bench, sampler, point, settings, calibration).row


def measure_traced(
    bench: Bench, sampler: Sampler, point: Point, settings: MeasurementSettings, calibration: SensorCalibration
) -> MeasuredKernel:
    """Run a kernel at the clock that is set: its row and its traces.

    What is doubtful about it stands in the row's flags; nothing is raised for bad data.  Raises RunnerError where
    the kernel cannot run, DeviceError where the board fails.
    """
    prepared, state, traces = _run(bench, sampler, point, settings, calibration)
    run, rest = traces[0], traces[1] if len(traces) > 1 else None
    doubts = (
        *(["kernel_untraced"] if prepared.untraced else []),
        *(["result_wrong"] if prepared.corrupted else []),
        *(["low_confidence"] if isinstance(point.load, GeneratedLoad) and point.load.launch.low_confidence else []),
        *(["shared_board"] if state.other_processes else []),
    )
    identity = bench.gpu.identity()
    outcome = outcome_columns(run, rest, settings, calibration, generated=point.load is not None, doubts=doubts)
    row: dict[str, Any] = {
        "row_id": point.row_id,
        **(operator_columns(point.operator) if point.load is None else load_columns(point.load)),
        **_kernel_columns(prepared),
        "gpu": bench.gpu_spec.name,
        "gpu_uuid": identity.uuid,
        "sm_clock_mhz": point.sm_clock_mhz,
        "memory_clock_mhz": state.memory_clock_mhz,
        **(without_power(outcome) if point.timed_only else outcome),
        "started_unix_s": run.started_unix_s,
        "trial": point.trial,
        "seed": point.seed,
    }
    return MeasuredKernel(row={name: known(value) for name, value in row.items()}, traces=traces)


def _run(
    bench: Bench, sampler: Sampler, point: Point, settings: MeasurementSettings, calibration: SensorCalibration
) -> tuple[PreparedKernel, GpuState, tuple[TraceRecord, ...]]:
    """Rest, range, run: the kernel that ran, the board after it, and the traces of run and rest."""
    load = point.load
    if load is None:
        prepared = bench.runner.prepare(point.operator, point.l2_state, point.transpose)
    else:
        prepared = bench.runner.prepare_generated(load)
    sampler.drain()
    bench.clock.wait(settings.idle_s if point.idle_before else min(settings.gap_s, TIMED_GAP_S) if point.timed_only else settings.gap_s)
    rest = sampler.drain()
    started_unix_s = bench.clock.unix_s()
    launch_s = ranged_launch_s(bench, prepared, settings.ranging_s)
    before = sampler.energy()
    run_s = TIMED_RUN_S if point.timed_only else settings.planned_run_s(calibration)
    record = bench.runner.run(prepared, launches_for(run_s, launch_s))
    after = sampler.energy()
    state = bench.gpu.state()

    def traced(kind: str, trace: Trace, **details: Any) -> TraceRecord:
        return TraceRecord(
            row_id=point.row_id,
            kind=kind,
            started_unix_s=started_unix_s,
            sm_clock_mhz=point.sm_clock_mhz,
            power_limit_w=state.power_limit_w,
            power=trace.board,
            states=trace.states,
            reference=trace.reference,
            **details,
        )

    run = traced(
        RUN,
        sampler.drain(),
        start_ns=record.start_ns,
        end_ns=record.end_ns,
        launches=record.launches,
        segment_s=record.segment_s,
        ranging_s=launch_s,
        counter_before=before,
        counter_after=after,
    )
    return prepared, state, (run, traced(REST, rest)) if point.idle_before else (run,)


def ranged_launch_s(bench: Bench, prepared: PreparedKernel, ranging_s: float) -> float:
    """Time of a launch from short runs that grow until they last `ranging_s` [s]."""
    launches = FIRST_RANGING_LAUNCHES
    while True:
        record = bench.runner.run(prepared, launches)
        launch_s = float(np.mean(record.segment_s))
        if not launch_s > 0:
            return (record.end_ns - record.start_ns) * SECONDS_PER_NS / launches
        if launch_s * launches >= ranging_s:
            return launch_s
        launches = min(RANGING_GROWTH * launches, launches_for(1.2 * ranging_s, launch_s))


def _kernel_columns(prepared: PreparedKernel) -> dict[str, Any]:
    """What the library chose; zeros that mean "none" become null."""
    return {
        "library": prepared.library or None,
        "kernel_name": prepared.kernel_name or None,
        **{f"grid_{axis}": size or None for axis, size in zip("xyz", prepared.grid, strict=True)},
        **{f"block_{axis}": size or None for axis, size in zip("xyz", prepared.block, strict=True)},
        "registers_per_thread": prepared.registers_per_thread or None,
        "shared_bytes_per_block": None if prepared.untraced else prepared.shared_bytes_per_block,
        "blocks_per_sm": prepared.blocks_per_sm or None,
        "tile_m": prepared.tile_m or None,
        "tile_n": prepared.tile_n or None,
        "tile_k": prepared.tile_k or None,
        "stages": prepared.stages or None,
        "split_k": None if prepared.untraced else prepared.split_k or None,
        "transpose": prepared.transpose or None,
        "l2_state": prepared.l2_state,
    }
