"""Errors of our model and others on published runs: a roofline, a power model in AccelWattch's form, and EnergAIzer's own figures.

    python benchmarks/baselines.py [--data ../shared/data] [--splits 5] [--json]

All models are tested on the same held-out rows: ours and AccelWattch's form are fitted on the other half of the workloads (on the other
model families, on only 900 MHz); the roofline has no fit.  AccelWattch does not predict time.  The refitted model gets the measured time,
as from counters of a run, so that its error is only of power; "accelwattch-style" has our time and component energies.  All figures are
mean absolute percentage errors; a bias is the mean of predicted over measured, less one.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
from scipy.optimize import nnls
from showing import DATA, published, show
from whole_models import REFERENCE_CLOCK_MHZ, Case, other_clocks, read_case

from estimator import Asked, Variant, estimate, roofline_latency_s
from estimator.bundle.content import Bundle
from estimator.engine.board import open_board
from estimator.engine.prediction import Prediction, Prepared, predict, prepare
from estimator.model.power import POWER_TERMS, BoardTables, OperatingPoint, PowerModel, power_events
from estimator.questions.estimates import roofline_seconds
from estimator.vocabulary.gpu import ClockTable, GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array, BoolArray
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import Workload
from fitter.bundle.runs import fit_runs
from fitter.rows.columns import WorkloadRows

PUBLISHED = (
    "EnergAIzer, A100 at 900 MHz, 31 workloads: latency 11.6, power 7.8 (paper: 11.0 / 8.0); latency of Li et al. 13.7, NeuSight 15.9",
    "EnergAIzer, A10 at 900 MHz: latency 9.0, power 8.2 (paper: 8.8 / 8.2); latency of Li et al. 31.6, NeuSight 9.6",
    "EnergAIzer, A100 over 11 clocks, 65 points: latency 17.2, power 7.7, energy 14.2",
)
"""Figures of the artifact's notebooks and its dvfs_report.csv for its own predictions, whose kernels were measured one by one."""


Points = Array
"""Latency [s] and power [W] of test rows, shape (2, n)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Errors of one model in one test [%]; nan for a quantity that it does not predict."""

    test: str
    model: str
    rows: int
    latency: float
    latency_bias: float
    power: float
    power_bias: float
    energy: float


def roofline_power_w(workload: Workload, gpu: GpuSpec, board: BoardTables, limit_w: float, sm_clock_mhz: Array) -> Array:
    """Mean power over the roofline's time [W], shape (c,); `board` holds voltage and idle power."""
    peak_clock = np.array([gpu.sm_clock_max_mhz])
    spare_w = max(limit_w - float(board.at(peak_clock).idle_w[0]), 0.0)
    point, at_peak = board.at(sm_clock_mhz), board.at(peak_clock)
    scale = (point.voltage_ratio / at_peak.voltage_ratio) ** 2
    counts = np.array(workload.counts)
    busy_s, busy_byte_s = 0.0, 0.0
    for operator, count in zip(workload.operators, counts.tolist(), strict=True):
        work = operator_work(operator)
        busy_byte_s += count * (work.read_byte + work.write_byte) / gpu.dram_bytes_per_s
        if work.flop:
            flop_per_clock = gpu.matrix_flop_per_clock(operator.precision, operator.cuda_cores) * gpu.num_sms
            busy_s += count * work.flop / (flop_per_clock * gpu.sm_clock_max_mhz * HZ_PER_MHZ)
    time_s = counts @ roofline_seconds(workload, gpu, sm_clock_mhz)
    result: Array = np.minimum(point.idle_w + spare_w * (scale * busy_s + busy_byte_s) / time_s, limit_w)
    return result


SHAPES = ((0, 1, 2), (0, 2), (0, 1), (0,))
"""Sets of the terms f⁰, f¹, f³ of an idle-power curve: all, or fewer if one would be negative."""


def rest_curve_w(idle: ClockTable, sm_clock_mhz: Array) -> Array:
    """C + τ·f + β·f³ through an idle table [W], none of them negative, shape of `sm_clock_mhz`."""
    clocks = np.array(idle.sm_clock_mhz)
    scale = float(clocks.max())
    powers, values = _powers(clocks / scale), np.array(idle.value)
    fits = [(shape, np.linalg.lstsq(powers[:, shape], values, rcond=None)[0]) for shape in SHAPES]
    allowed = [(float(np.sum((powers[:, shape] @ found - values) ** 2)), shape, found) for shape, found in fits if np.all(found >= 0.0)]
    _, shape, found = min(allowed, key=lambda fit: fit[0])
    result: Array = _powers(sm_clock_mhz / scale)[:, shape] @ found
    return result


def _powers(relative: Array) -> Array:
    return np.stack([np.ones_like(relative), relative, relative**3], axis=-1)


def component_rates(prepared: Prepared, latency_s: Array, point: OperatingPoint) -> Array:
    """Events of POWER_TERMS a second, core terms times (V/V₀)², shape (c, 7): the linear terms of power in AccelWattch's form.

    latency_s (c,) of the iteration of a single workload.
    """
    totals = prepared.counts @ power_events(prepared.phases, prepared.board.gpu, credit=0.0)
    core = np.array([term != "dram" for term in POWER_TERMS])
    scale = np.where(core[None, :], (point.voltage_ratio**2)[:, None], 1.0)
    result: Array = totals[None, :] * scale / latency_s[:, None]
    return result


def component_power_w(prediction: Prediction, model: PowerModel) -> Array:
    """Mean power over an iteration of a single workload at its clocks and times [W], shape (c,)."""
    board, clock_mhz, latency_s = prediction.prepared.board, prediction.sm_clock_mhz[0], prediction.latency_s[0]
    point = board.tables.at(clock_mhz)
    rest_w = point.idle_w if board.tables.idle_w is None else rest_curve_w(board.tables.idle_w, clock_mhz)
    clocked = point.voltage_ratio**2 * point.sm_clock_hz / (model.reference_clock_mhz * HZ_PER_MHZ)
    dynamic_w = component_rates(prediction.prepared, latency_s, point) @ model.event_energy_j
    result: Array = rest_w + model.active_w + model.busy_w * clocked * np.minimum(prediction.gpu_s[0] / latency_s, 1.0) + dynamic_w
    return result


def component_columns(rows: WorkloadRows, bundle: Bundle, case: Case) -> tuple[Array, Array]:
    """Linear terms of power in AccelWattch's form, at the measured times and clocks, shape (n, 9), and its power at rest (n,)."""
    columns, rest = [], []
    for workload, seconds, clock in zip(rows.row_workloads(), rows.latency_s, rows.clock_mhz(case.gpu), strict=True):
        prepared = prepare([workload], open_board(bundle, gpu=case.gpu))
        at = np.array([clock])
        point = case.tables.at(at)
        rates = component_rates(prepared, np.array([seconds]), point)[0]
        clocked = float(point.voltage_ratio[0] ** 2 * clock / REFERENCE_CLOCK_MHZ)
        columns.append([*rates, clocked, 1.0])
        rest.append(float((point.idle_w if case.tables.idle_w is None else rest_curve_w(case.tables.idle_w, at))[0]))
    return np.array(columns), np.array(rest)


def fitted_components(train: WorkloadRows, test: WorkloadRows, bundle: Bundle, case: Case) -> Points:
    """AccelWattch's method: component energies that are not negative, by least squares of relative errors of power."""
    columns, rest = component_columns(train, bundle, case)
    size = np.maximum(columns.max(axis=0), 1e-300)
    energies, _ = nnls(columns / size / train.power_w[:, None], (train.power_w - rest) / train.power_w)
    columns, rest = component_columns(test, bundle, case)
    return np.stack([np.full(len(test), np.nan), rest + columns / size @ energies])


def by_bundle(test: WorkloadRows, bundle: Bundle, case: Case) -> dict[str, Points]:
    """Points of our model and of its baselines."""
    found: dict[str, list[tuple[float, float]]] = {}
    for workload, clock in zip(test.row_workloads(), test.asked_clock_mhz(case.gpu), strict=True):
        own = estimate(workload, bundle, sm_clock_mhz=float(clock), gpu=case.gpu)[0]
        found.setdefault("wattprint", []).append((own.latency_s, own.power_w))
        asked = Asked(variant=Variant(workload=workload), bundle=bundle, sm_clock_mhz=(float(clock),), gpu=case.gpu)
        board = asked.board()
        power_w = roofline_power_w(workload, board.gpu, board.tables, board.limit_w, np.array([own.sm_clock_mhz]))
        prediction = predict([workload], board)
        if prediction.prepared.board.model is not None:
            power = float(component_power_w(prediction, prediction.prepared.board.model)[0])
            found.setdefault("accelwattch-style", []).append((own.latency_s, power))
        found.setdefault("roofline", []).append((float(roofline_latency_s(asked)[0]), float(power_w[0])))
    return {name: np.array(values).T for name, values in found.items()}


def errors(test: str, model: str, measured: WorkloadRows, predicted: Points) -> Row:
    """One model's errors in percent."""
    ratios = dict(zip(("latency", "power"), predicted / [measured.latency_s, measured.power_w], strict=True))
    ratios["energy"] = ratios["latency"] * ratios["power"]
    mape = {name: float(100.0 * np.mean(np.abs(ratio - 1.0))) for name, ratio in ratios.items()}
    bias = {f"{name}_bias": float(100.0 * (np.mean(ratios[name]) - 1.0)) for name in ("latency", "power")}
    return Row(test=test, model=model, rows=len(measured), **mape, **bias)


def judged(test: str, train: WorkloadRows, held: WorkloadRows, case: Case, target: Case | None = None) -> list[Row]:
    """Every model's errors on held-out rows."""
    other = target or case
    bundle = fit_runs(train, case.gpu, case.tables)
    found = by_bundle(held, bundle, other) | {
        "accelwattch-style, refitted": fitted_components(train, held, bundle, replace(other, rows=held))
    }
    return [errors(test, model, held, predicted) for model, predicted in found.items()]


def mean_rows(rows: Iterable[Row]) -> list[Row]:
    """Rows of several splits of one test, averaged by model; every measured row has the same weight."""
    models: dict[str, list[Row]] = {}
    for row in rows:
        models.setdefault(row.model, []).append(row)
    numbers = ("latency", "latency_bias", "power", "power_bias", "energy")
    found = []
    for own in models.values():
        weight = [row.rows for row in own]
        means = {name: float(np.average([getattr(row, name) for row in own], weights=weight)) for name in numbers}
        found.append(replace(own[0], rows=sum(weight), **means))
    return found


def halves(name: str, case: Case, splits: int) -> list[Row]:
    """Random half of the workloads → the other half, mean over splits."""
    unique, found = np.unique(case.rows.workload_index), []
    for seed in range(splits):
        chosen = np.random.default_rng(seed).permutation(unique)[: len(unique) // 2]
        train: BoolArray = np.isin(case.rows.workload_index, chosen)
        found += judged(name, case.rows.select(train), case.rows.select(~train), case)
    return mean_rows(found)


def families(name: str, case: Case) -> list[Row]:
    """Each model family left out of the fit in turn; every row has the same weight."""
    names, found = np.array([case.rows.workloads[i].model_family for i in case.rows.workload_index]), []
    for family in np.unique(names):
        held = names == family
        found += judged(name, case.rows.select(~held), case.rows.select(held), case)
    return mean_rows(found)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA, show_default=True)
@click.option("--splits", default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, splits: int, as_json: bool) -> None:
    """Print every model's errors in every test."""
    if not published(data / "energaizer"):
        return
    a100, clocks, a10 = (read_case(data / "energaizer" / f"{name}.csv") for name in ("a100_900mhz", "a100_clocks", "a10_900mhz"))
    tests = (
        lambda: halves("A100, half of the workloads", a100, splits),
        lambda: families("A100, each family left out", a100),
        lambda: judged("A100, 900 MHz -> other clocks", a100.rows, other_clocks(clocks), a100, clocks),
        lambda: halves("A10, half of the workloads", a10, splits),
    )
    show((asdict(row) for test in tests for row in test()), as_json)
    if not as_json:
        click.echo("published:\n  " + "\n  ".join(PUBLISHED))


if __name__ == "__main__":
    main()
