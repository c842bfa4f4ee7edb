"""Power of a board that was not measured: the whole-model runs of every board, forecast from the bundle of each other board.

    python benchmarks/board_power.py [--data ../shared/data] [--json]

Mean absolute errors in percent, with their bias.  "power": at the measured latency, so that it is an error of power alone, over all runs;
"latency", "forecast power": as `estimate --gpu-spec` gives them, over runs from 20 ms on, whose host has no part; "inside": share of these
runs inside the stated 90 % interval of power.  Rows "without …" switch off one idea; of rows "by rules" the
target has no tables of voltage and rest power, "and a reading" states its rest power at the clock of each run, as `--idle-power` does.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np
from showing import DATA, published, show
from whole_models import SHORT_S, Case, read_case

from estimator.bundle.content import Bundle
from estimator.engine.board import open_board
from estimator.engine.prediction import evaluate, prepare
from estimator.model.power import term_scale, workload_power_w
from estimator.model.power_limit import UNLIMITED_W
from estimator.questions.estimates import estimate
from estimator.vocabulary.gpu import ClockTable
from estimator.vocabulary.quantities import NORMAL_90, Array
from fitter.bundle.runs import fit_runs, stated_uncertainty
from fitter.rows.columns import join_rows
from fitter.validate.predictions import predict_workload_rows

BOARDS = {"a100": ("a100_900mhz", "a100_clocks"), "a10": ("a10_900mhz",), "h100": ("h100_sxm",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of one forecast [%]; nan for the figures of rows that switch an idea off."""

    case: str
    rows: int
    power: float
    power_bias: float
    latency: float = np.nan
    latency_bias: float = np.nan
    forecast_power: float = np.nan
    forecast_power_bias: float = np.nan
    inside: float = np.nan


def read_board(data: Path, name: str) -> Case:
    """All runs of a board."""
    cases = [read_case(data / "energaizer" / f"{file}.csv") for file in BOARDS[name]]
    rows = join_rows([case.rows for case in cases])
    assert rows is not None
    return replace(cases[0], rows=rows)


def fitted(case: Case) -> Bundle:
    """The bundle of a board's runs."""
    bundle = fit_runs(case.rows, case.gpu, case.tables)
    return replace(bundle, uncertainty=stated_uncertainty(case.rows, case.gpu, case.tables, seed=0, bundle=bundle))


def power_at_measured_latency(bundle: Bundle, case: Case) -> Array:
    """Power of each run at its measured latency and clock [W], shape (n,)."""
    found = []
    for workload, clock, seconds in zip(case.rows.row_workloads(), case.rows.clock_mhz(case.gpu), case.rows.latency_s, strict=True):
        board = open_board(bundle, gpu=case.gpu, sm_clock_mhz=float(min(clock, case.gpu.sm_clock_limit_mhz)), power_cap_w=UNLIMITED_W)
        prepared = prepare([workload], board)
        model, point = board.model, board.tables.at(board.asked_mhz)
        assert model is not None
        energy_j = (prepared.events * model.event_energy_j * term_scale(model, point)).sum(axis=-1)
        gpu_s = evaluate(prepared, board.asked_mhz[None, :]).gpu_s[0]
        found.append(float(workload_power_w(model, point, np.minimum(gpu_s, seconds), np.array([seconds]), energy_j)[0]))
    return np.array(found)


def score(name: str, bundle: Bundle, case: Case, *, whole: bool = True) -> Score:
    """Errors of a bundle on the runs of another board."""
    measured = np.isfinite(case.rows.energy_j)
    case = replace(case, rows=case.rows.select(measured))
    ratio = power_at_measured_latency(bundle, case) / case.rows.power_w
    below = case.rows.power_w < 0.99 * case.gpu.power_limit_w
    found = Score(case=name, rows=int(below.sum()), power=percent(np.abs(ratio[below] - 1.0)), power_bias=percent(ratio[below] - 1.0))
    if not whole:
        return found
    runs = predict_workload_rows(bundle, case.rows.select(case.rows.latency_s >= SHORT_S))
    ratios = {q: (runs[f"predicted_{q}"] / runs[f"measured_{q}"]).to_numpy() for q in ("latency", "power")}
    return replace(
        found,
        latency=percent(np.abs(ratios["latency"] - 1.0)),
        latency_bias=percent(ratios["latency"] - 1.0),
        forecast_power=percent(np.abs(ratios["power"] - 1.0)),
        forecast_power_bias=percent(ratios["power"] - 1.0),
        inside=percent(np.abs(np.log(ratios["power"])) < NORMAL_90 * runs["std_power"].to_numpy()),
    )


def without_tables(name: str, bundle: Bundle, case: Case, *, reading: bool) -> Score:
    """Errors of forecast power for a board whose tables are not known; reading: its rest power at each run's clock is."""
    rows = case.rows.select(np.isfinite(case.rows.energy_j) & (case.rows.latency_s >= SHORT_S))
    bare, ratios, inside = replace(case.gpu, voltage_v=None, idle_w=None), [], []
    for workload, clock, watt in zip(rows.row_workloads(), rows.clock_mhz(case.gpu), rows.power_w, strict=True):
        at_mhz = float(min(clock, case.gpu.sm_clock_limit_mhz))
        assert case.gpu.idle_w is not None
        rest = (float(case.gpu.idle_w.at(np.array([at_mhz]))[0]), at_mhz)
        found = estimate(workload, bundle, gpu=bare, sm_clock_mhz=at_mhz, idle_power=rest if reading else None)[0]
        ratios.append(found.power_w / watt)
        inside.append(found.power_w_low < watt < found.power_w_high)
    off = np.array(ratios) - 1.0
    figures = {"forecast_power": percent(np.abs(off)), "forecast_power_bias": percent(off), "inside": percent(np.array(inside))}
    return Score(case=name, rows=len(rows), power=np.nan, power_bias=np.nan, **figures)


def percent(values: Array) -> float:
    """The mean in percent."""
    return float(100.0 * np.mean(values))


FLAT = ClockTable(sm_clock_mhz=(1000.0,), value=(1.0,))
IDEAS: dict[str, dict[str, object]] = {
    "the process": {"estimator.model.silicon.PROCESS_ENERGY": {}},
    "the tensor core's width": {"estimator.model.silicon.WIDTH_SHARE": 0.0},
    "a rising voltage": {"estimator.model.power.voltage_ratios": lambda gpu, voltage, idle: FLAT},
    "the rules, rest power known": {
        "estimator.model.power.energy_factors": lambda gpu: {},
        "estimator.model.power.voltage_ratios": lambda gpu, voltage, idle: FLAT,
    },
    "usual lambdas": {"fitter.bundle.sections.LAMBDAS": ()},
}
"""What stands in place of each idea, by its name."""


@contextmanager
def without(idea: str) -> Iterator[None]:
    """Predictions without an idea."""
    with ExitStack() as patches:
        for name, value in IDEAS[idea].items():
            patches.enter_context(patch(name, value))
        yield


def scores(data: Path) -> Iterator[Score]:
    """Every board from each other one, then without each idea."""
    cases = {name: read_board(data, name) for name in BOARDS}
    bundles = {name: fitted(case) for name, case in cases.items()}
    pairs = [(source, target) for source in BOARDS for target in BOARDS if source != target]
    for source, target in pairs:
        yield score(f"{source} to {target}", bundles[source], cases[target])
        if cases[target].gpu.idle_w is not None:
            for reading, label in ((False, "by rules"), (True, "by rules and a reading")):
                yield without_tables(f"{source} to {target} {label}", bundles[source], cases[target], reading=reading)
    for idea in IDEAS:
        with without(idea):
            plain = {name: fit_runs(case.rows, case.gpu, case.tables) for name, case in cases.items()}
            for source, target in pairs:
                yield score(f"{source} to {target} without {idea}", plain[source], cases[target], whole=idea == "usual lambdas")


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, as_json: bool) -> None:
    """Print the errors of every forecast."""
    if published(data / "energaizer"):
        show(map(asdict, scores(data)), as_json)


if __name__ == "__main__":
    main()
