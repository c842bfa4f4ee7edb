"""Workload datasets: whole-model measurements, a row per run, as CSV or Parquet.

Columns: workload (path, relative to the file), gpu, precision, attention, sm_clock_mhz (requested), sm_clock_measured_mhz,
iterations, latency_s and energy_j (per iteration) or power_w, temperature_c, host, collection.

A benchmark times one iteration, runs as many iterations as should fill a target duration, and divides the whole window by their number.
Duration − target − half an iteration (the count is rounded up) is therefore about one constant of the host, its start-up inside the
measured window; the median over the complete runs is removed from every run of that host.
Source: the public runs of EnergAIzer (arXiv 2604.20105).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from estimator.formats import read_workload
from estimator.model.power import BoardTables
from estimator.questions.estimates import least_clocks
from estimator.transforms.rewriting import ATTENTION_FORMS, with_attention, with_precision
from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, HZ_PER_MHZ, Array, canonical_precision
from estimator.vocabulary.workload import Workload, workload_as_run
from fitter.errors import InputError
from fitter.rows.columns import Selection, Startup, WorkloadRows, compacted
from fitter.rows.kernel_table import IMPLAUSIBLE_RATIO
from fitter.rows.screening import FEWEST_OF_A_UNIT, LONGEST_RUN_S, ROOF_TOLERANCE, Screen, first_known, numbered, roof_seconds
from fitter.rows.tables import Table

COLUMNS: Final = frozenset(
    {
        "workload", "gpu", "precision", "attention", "host", "sm_clock_mhz", "sm_clock_measured_mhz", "iterations", "latency_s",
        "energy_j", "power_w", "temperature_c", "collection", "source",
    }
)  # fmt: skip
"""Columns of a workload dataset; others are ignored."""

NEEDED: Final = ("workload", "latency_s")

ROUND_TARGETS_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 600.0)
"""Usual target durations of a run [s]."""

TRUNCATED_SHARE: Final = 0.8
"""Least duration of a complete run as a share of the target [1]."""

SENSOR_UPDATE_S: Final = 0.1
"""Longest usual time between two readings of a board's power sensor [s] (V100, A100, H100: 20 to 100 ms, arXiv 2312.02741); a shorter run
has no power of its own."""

FEWEST_RUNS: Final = 5
"""Fewer runs show no common target."""


def read_workload_dataset(table: Table, gpu: GpuSpec | None = None) -> Selection:
    """Accepted rows with start-up removed, rejected rows, and the start-up of each host.

    gpu: the GPU to keep, also the GPU of all rows if the table has no such column.
    """
    screen = Screen(table, gpu)
    workloads = _workloads(screen)
    table = screen.table
    screen.reject_limits(("latency_s", "iterations", "temperature_c", "sm_clock_mhz", "sm_clock_measured_mhz"))
    asked, measured = screen.clocks("sm_clock_mhz"), screen.clocks("sm_clock_measured_mhz")
    iterations, raw_latency = table.numbers("iterations"), table.numbers("latency_s")
    raw_energy = first_known(table.numbers("energy_j"), table.numbers("power_w") * raw_latency)
    duration = iterations * raw_latency
    screen.reject(duration > LONGEST_RUN_S, "BAD_ITERATIONS", lambda i: f"iterations = {iterations[i]:g} of {raw_latency[i]:g} s")
    specs = [screen.specs[i] for i in screen.gpu_index.tolist()]
    hosts = list(zip([spec.name for spec in specs], table.texts("host"), strict=True))
    found = _startups(screen, hosts, duration, raw_latency)
    clock = first_known(measured, asked)
    _reject_by_roof(screen, specs, workloads, raw_latency, clock)
    known = [found.get(host) for host in hosts]
    startup = np.array([one.startup_s if one else 0.0 for one in known])
    target = np.array([one.target_s if one else np.nan for one in known])
    with np.errstate(divide="ignore", invalid="ignore"):  # from rejected rows
        share = np.where(startup > 0, startup / iterations, 0.0)
        latency = raw_latency - share
        energy = raw_energy - share * np.array([_startup_w(*state) for state in zip(specs, clock, strict=True)])
        power = energy / latency
        # The count of iterations came from one trial iteration; a run at the same pace lasts target + start-up + at most one iteration.
        # A duration so far from the expected one: the pace changed during the run (2 s of 30).
        perturbed = np.abs(duration - target - startup - raw_latency / 2.0) > target / 15.0 + raw_latency / 2.0
    screen.reject_limits(("energy_j", "power_w"), power=("energy_j", "power_w"))
    screen.reject(
        (duration < SENSOR_UPDATE_S) & np.isfinite(raw_energy),
        "SHORT_RUN",
        lambda i: f"all iterations took {duration[i]:.3g} s, a sensor may update each {SENSOR_UPDATE_S:g} s",
        power=True,
    )
    screen.reject_power(power, screen.of_gpu(lambda spec: spec.power_limit_w))
    unique, workload_index = numbered(workloads)
    rows = WorkloadRows(
        workloads=unique,
        workload_index=workload_index,
        sm_clock_asked_mhz=asked,
        sm_clock_measured_mhz=measured,
        latency_s=latency,
        energy_j=np.where(screen.power >= 0, np.nan, energy),
        temperature_c=table.numbers("temperature_c"),
        weight=np.where(perturbed, 0.25, 1.0),
        **screen.places(),
    )
    return Selection(workloads=compacted(rows, screen.kept()), rejected=screen.rejected(), startups=tuple(found.values()))


def _workloads(screen: Screen) -> list[Workload]:
    """The workload of each row, with the row's attention and number format; a file is read once for each pair.

    Rows without a valid workload are removed from the screen's table.
    """
    table = screen.table
    keys = list(zip(table.texts("workload"), table.texts("attention"), table.texts("precision"), strict=True))
    known = {key: _workload(table.path.parent, *key) for key in dict.fromkeys(keys)}
    for key, one in known.items():
        if isinstance(one, tuple):
            screen.reject([i for i, own in enumerate(keys) if own == key], *one)
    screen.narrow()
    return [one for key in keys if isinstance(one := known[key], Workload)]


def _workload(folder: Path, text: str, attention: str, precision: str) -> Workload | tuple[str, str]:
    if attention and attention.lower() not in ATTENTION_FORMS:
        return ("UNKNOWN_ATTENTION", f"{attention[:40]!r}; known: {', '.join(ATTENTION_FORMS)}")
    if precision and canonical_precision(precision) is None:
        return ("UNKNOWN_PRECISION", f"{precision[:40]!r}; known: {', '.join(BYTES_PER_ELEMENT)}")
    try:
        if not text or not (folder / text).is_file():  # also keeps pipes and devices out
            return ("MISSING_WORKLOAD", f"{text[:200]!r}: no such file; paths are relative to the data set's folder")
        workload = read_workload(folder / text)
        if attention:
            workload = with_attention(workload, attention.lower())
        if precision:
            workload = with_precision(workload, precision)
    except (EstimatorError, OSError, ValueError) as error:  # ValueError: an invalid file name
        return ("MISSING_WORKLOAD", str(error)[:300])
    return workload_as_run(workload) if workload.operators else ("WORKLOAD_WITHOUT_OPERATORS", text[:200])


def target_duration_s(duration_s: Array) -> float:
    """Target duration of runs [s]; nan without a common one.

    It is the largest of ROUND_TARGETS_S below the median, if most runs lie close to that median.
    """
    valid = duration_s[np.isfinite(duration_s) & (duration_s > 0)]
    if len(valid) < FEWEST_RUNS:
        return float("nan")
    middle = float(np.median(valid))
    below = max((target for target in ROUND_TARGETS_S if target <= middle), default=0.0)
    # Runs aimed at one target where 60 % of them lie within 10 % of the median duration.
    alike = float(np.mean(np.abs(valid / middle - 1.0) < 0.1)) >= 0.6
    # A start-up above 15 % of the target says that the target was another one.
    return below if alike and middle <= below * (1.0 + 0.15) else float("nan")


def _startups(screen: Screen, hosts: list[tuple[str, str]], duration_s: Array, latency_s: Array) -> dict[tuple[str, str], Startup]:
    """Start-up of each host; rejects truncated runs, and runs whose start-up cannot be subtracted."""
    result = {}
    good = screen.whole < 0
    for host in dict.fromkeys(hosts):
        rows = np.flatnonzero([own == host for own in hosts] & good)
        target = target_duration_s(duration_s[rows])
        if np.isnan(target):
            continue
        complete = rows[duration_s[rows] >= TRUNCATED_SHARE * target]
        middle = float(np.median(duration_s[complete] - target - latency_s[complete] / 2.0))
        gpu = " on ".join(filter(None, host))
        result[host] = Startup(gpu=gpu, target_s=target, startup_s=max(middle, 0.0), runs=len(complete))
        short = rows[duration_s[rows] < TRUNCATED_SHARE * target].tolist()
        screen.reject(short, "TRUNCATED_RUN", lambda i, t=target: f"took {duration_s[i]:.3g} s where the other runs aim at {t:g} s")  # type: ignore[misc]
        if middle > 0:
            uncounted = rows[~np.isfinite(duration_s[rows])].tolist()
            screen.reject(uncounted, "BAD_ITERATIONS", "missing, so the start-up within latency_s cannot be removed")
    return result


def _reject_by_roof(screen: Screen, specs: Sequence[GpuSpec], workloads: Sequence[Workload], latency_s: Array, clock_mhz: Array) -> None:
    """Reject runs faster than their matrix products at the peak rate: they ran another workload.

    Convolutions are left out, because lists may declare depthwise ones as dense.  Raises InputError if most runs are far slower than
    hardware and host allow: the file holds milli- or microseconds.
    """
    good = screen.kept().tolist()
    ratio = [latency_s[i] / _usual_s(workloads[i], specs[i], clock_mhz[i]) for i in good[:: max(len(good) // FEWEST_OF_A_UNIT, 1)]]
    if len(ratio) >= FEWEST_OF_A_UNIT and np.median(ratio) > IMPLAUSIBLE_RATIO:
        slow = f"the runs take {np.median(ratio):.0f} times what hardware and host need"
        raise InputError(f"{screen.table.name}: {slow}; latency_s must be in seconds, of one iteration")
    for i in good:
        spec, workload = specs[i], workloads[i]
        products = [place for place, operator in enumerate(workload.operators) if operator.family in ("gemm", "attention")]
        clocks = np.nan_to_num(least_clocks([workload.operators[place] for place in products], spec))
        clock_hz = first_known(clock_mhz[i], spec.sm_clock_limit_mhz) * HZ_PER_MHZ
        least = float(clocks @ np.array([workload.counts[place] for place in products]) / clock_hz)
        if latency_s[i] * ROOF_TOLERANCE < least:
            screen.reject([i], "ABOVE_ROOF", f"latency_s = {latency_s[i]:.4g}; {spec.name} needs at least {least:.4g} s")


def _usual_s(workload: Workload, spec: GpuSpec, clock_mhz: float) -> float:
    """What peak rates allow, and 50 µs for each operator, a slow host's (assumed) [s]."""
    place = np.arange(len(workload.operators))
    roof = roof_seconds(workload.operators, spec, place, np.full(len(place), clock_mhz))
    return float(np.dot(np.nan_to_num(roof) + 50e-6, workload.counts))


def _startup_w(spec: GpuSpec, clock_mhz: float) -> float:
    """Power during start-up [W]: idle at the locked clock, plus that of a board in use."""
    clock = np.atleast_1d(first_known(clock_mhz, spec.sm_clock_max_mhz))
    tables = BoardTables(gpu=spec, voltage_v=spec.voltage_v, idle_w=spec.idle_w, reference_clock_mhz=spec.sm_clock_max_mhz)
    idle = float(tables.rest_w(clock)[0])
    # Power of a board in use beyond idle while a run starts up; the prior of the power fit's `active` term.
    return idle + 8.0
