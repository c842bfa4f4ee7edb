"""Errors of whole-model latency and power on published runs: fit on some, predict the others.

    python benchmarks/whole_models.py [--data ../shared/data] [--splits 20] [--json]

Targets have start-up removed (see docs/model.md); errors against the raw targets stand beside them.  All figures are
mean absolute percentage errors.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from estimator.gpu import GpuSpec
from estimator.power import BoardTables
from estimator.prediction import estimate
from estimator.quantities import Array, BoolArray
from estimator.specifications import load_gpu
from fitter.rows import WorkloadRows
from fitter.runs import NORMAL_90, fit_runs, predict_runs, stated_uncertainty
from fitter.selection import read_selection

REFERENCE_CLOCK_MHZ = 900.0
LANGUAGE = ("bert", "gpt2", "opt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Runs of one GPU and what its board tables say."""

    rows: WorkloadRows
    gpu: GpuSpec
    tables: BoardTables


def read_case(path: Path) -> Case:
    """Accepted runs of a workload dataset."""
    selection = read_selection([path])
    assert selection.workloads is not None
    gpu = load_gpu(selection.gpus[0])
    tables = BoardTables(
        voltage_v=gpu.voltage_v, idle_w=gpu.idle_w, reference_clock_mhz=REFERENCE_CLOCK_MHZ, power_limit_w=gpu.power_limit_w
    )
    return Case(rows=selection.workloads, gpu=gpu, tables=tables)


def mape(predicted: Array, measured: Array) -> float:
    """Mean absolute percentage error."""
    return float(100 * np.mean(np.abs(predicted / measured - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of one test in percent: latency, power, energy; the same against raw targets; coverage of 90 % intervals."""

    latency: float
    power: float
    energy: float
    raw_latency: float
    raw_power: float
    latency_coverage: float = float("nan")
    power_coverage: float = float("nan")


def score(train: WorkloadRows, test: WorkloadRows, case: Case, *, target: Case | None = None, intervals: bool = False) -> Score:
    """Fit `train` on its GPU and predict `test` (on the GPU of `target`)."""
    other = target or case
    fit = fit_runs(train, case.gpu, case.tables)
    bundle = fit.bundle
    if intervals:
        bundle = replace(bundle, uncertainty=stated_uncertainty(train, case.gpu, case.tables, seed=0, bundle=bundle))
    latency, power, _ = predict_runs(bundle, test, other.gpu)
    coverage = (float("nan"), float("nan"))
    if intervals:
        coverage = _coverage(bundle, test, other.gpu)
    return Score(
        latency=mape(latency, test.latency_s),
        power=mape(power, test.power_w),
        energy=mape(latency * power, test.energy_j),
        raw_latency=mape(latency, test.raw_latency_s),
        raw_power=mape(power, test.raw_power_w),
        latency_coverage=coverage[0],
        power_coverage=coverage[1],
    )


def _coverage(bundle: object, test: WorkloadRows, gpu: GpuSpec) -> tuple[float, float]:
    inside = []
    clocks = test.asked_clock_mhz(gpu)
    for workload, clock, seconds, watts in zip(test.row_workloads(), clocks, test.latency_s, test.power_w, strict=True):
        e = estimate(workload, bundle, sm_clock_mhz=float(clock), gpu=gpu)[0]  # type: ignore[arg-type]
        inside.append(
            (
                abs(np.log(seconds / e.latency_s)) < NORMAL_90 * e.latency_s_std / e.latency_s,
                abs(np.log(watts / e.power_w)) < NORMAL_90 * e.power_w_std / e.power_w,
            )
        )
    both = np.mean(inside, axis=0)
    return float(both[0]), float(both[1])


def halves(case: Case, splits: int) -> Score:
    """Random half of the workloads → the other half, mean over splits."""
    unique = np.unique(case.rows.workload_index)
    scores = []
    for seed in range(splits):
        chosen = np.random.default_rng(seed).permutation(unique)[: len(unique) // 2]
        train: BoolArray = np.isin(case.rows.workload_index, chosen)
        scores.append(score(case.rows.select(train), case.rows.select(~train), case, intervals=True))
    return Score(**{name: float(np.mean([getattr(s, name) for s in scores])) for name in Score.__slots__})


def families(case: Case) -> dict[str, Score]:
    """Each model family left out of the fit."""
    names = np.array([case.rows.workloads[i].model_family for i in case.rows.workload_index])
    found = {}
    for name in np.unique(names):
        out = names == name
        found[str(name)] = score(case.rows.select(~out), case.rows.select(out), case, intervals=True)
    return found


def run(data: Path, splits: int, report: Callable[[str, Score], None]) -> None:
    """Every test, reported as it ends."""
    a100, clocks, a10 = (read_case(data / "energaizer" / f"{name}.csv") for name in ("a100_900mhz", "a100_clocks", "a10_900mhz"))
    report("A100 half", halves(a100, splits))
    for name, one in families(a100).items():
        report(f"A100 without {name}", one)
    other = clocks.rows.select(np.abs(clocks.rows.asked_clock_mhz(clocks.gpu) - REFERENCE_CLOCK_MHZ) > 1.0)
    report("A100 900 MHz -> other clocks", score(a100.rows, other, a100, target=clocks, intervals=True))
    report("A10 half", halves(a10, splits))
    for name, one in families(a10).items():
        report(f"A10 without {name}", one)
    report("A100 -> A10 by specification (latency)", score(a100.rows, a10.rows, a100, target=a10))


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=Path(__file__).resolve().parents[2] / "shared" / "data", show_default=True)
@click.option("--splits", default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, splits: int, as_json: bool) -> None:
    """Print every test's errors."""
    rows: list[dict[str, object]] = []

    def report(name: str, one: Score) -> None:
        rows.append({"test": name} | {key: getattr(one, key) for key in Score.__slots__})
        if not as_json:
            click.echo(
                f"{name:42s} latency {one.latency:5.2f}  power {one.power:5.2f}  energy {one.energy:5.2f}   "
                f"raw {one.raw_latency:5.2f} / {one.raw_power:5.2f}   coverage {one.latency_coverage:.2f} / {one.power_coverage:.2f}"
            )

    if not (data / "energaizer").is_dir():
        click.echo(f"skipped: the published runs are not at {data / 'energaizer'}; --data names another folder", err=True)
        return
    run(data, splits, report)
    if as_json:
        click.echo(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
