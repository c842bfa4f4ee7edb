"""Errors of whole-model latency and power on published runs: fit on some, predict the others.

    python benchmarks/whole_models.py [--data ../shared/data] [--divisions 10] [--simulate 0] [--json]

Targets have start-up removed (`fitter/rows/workload_dataset.py`); errors of the raw targets stand beside them.  All figures are
mean absolute percentage errors.  Half to half is also shown by length of the run, with the repeatability of short runs.  The workloads are
divided at random, and each half predicts the other, so that runs which no fit predicts well are equally often fitted and predicted.  In
only one direction, the mean share inside over 20 divisions has a standard error of two points.

Three figures describe the stated 90 % intervals: the share of runs inside, the mean square of error over stated deviation, and the mean
half width.  Runs of one family have a common error, so the share of left-out families' runs varies between collections of families:
`--simulate N` draws N collections with a planted spread between families (`planted_spread`) and needs no data.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
import pandas as pd
from planted_spread import RATIOS, planted_coverage
from showing import DATA, published, show

from estimator.model.power import BoardTables
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import NORMAL_90, BoolArray
from fitter.bundle.runs import fit_runs, stated_uncertainty
from fitter.rows.columns import WorkloadRows
from fitter.rows.selection import read_selection
from fitter.validate.predictions import QUANTITIES, predict_workload_rows

REFERENCE_CLOCK_MHZ = 900.0
LANGUAGE = ("bert", "gpt2", "opt")

SHORT_S = 0.02
"""Length below which runs of the published lists are mostly launch-bound [s]."""

LABORATORY = "EnergAIzer artifact"
"""The collection of all files."""

Score = dict[str, float]
"""Errors in percent: latency, power, energy; of stated intervals of Q: Q_coverage, Q_square, Q_width [%]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Runs of one GPU and its board tables."""

    rows: WorkloadRows
    gpu: GpuSpec
    tables: BoardTables


def read_case(path: Path) -> Case:
    """Accepted runs of a workload dataset."""
    selection = read_selection([path])
    assert selection.workloads is not None
    gpu = selection.workloads.gpus[0]
    tables = BoardTables(gpu=gpu, voltage_v=gpu.voltage_v, idle_w=gpu.idle_w, reference_clock_mhz=REFERENCE_CLOCK_MHZ)
    rows = replace(selection.workloads, collections=(LABORATORY,))
    return Case(rows=rows, gpu=gpu, tables=tables)


def outcome(train: WorkloadRows, test: WorkloadRows, case: Case, *, intervals: bool = False) -> pd.DataFrame:
    """Fit `train` on its GPU and predict `test` with `predict_workload_rows`."""
    bundle = fit_runs(train, case.gpu, case.tables)
    if intervals:
        bundle = replace(bundle, uncertainty=stated_uncertainty(train, case.gpu, case.tables, seed=0, bundle=bundle))
    return predict_workload_rows(bundle, test)


def summary(*parts: pd.DataFrame) -> Score:
    """Errors over the runs of all parts."""
    runs = pd.concat(parts)
    energy = {f"{kind}_energy": runs[f"{kind}_latency"] * runs[f"{kind}_power"] for kind in ("measured", "predicted")}
    runs = runs.assign(**energy)
    pairs = {name: (name, f"measured_{name}") for name in (*QUANTITIES, "energy")}
    found = {name: float(100.0 * (runs[f"predicted_{of}"] / runs[target] - 1.0).abs().mean()) for name, (of, target) in pairs.items()}
    for name in QUANTITIES:
        std = runs[f"std_{name}"]
        score = np.log(runs[f"measured_{name}"] / runs[f"predicted_{name}"]) / std
        found[f"{name}_coverage"] = float((np.abs(score) < NORMAL_90).mean())
        found[f"{name}_square"] = float(np.mean(score**2))
        found[f"{name}_width"] = float(100.0 * NORMAL_90 * std.mean())
    return found


def half_outcomes(case: Case, divisions: int) -> list[pd.DataFrame]:
    """Random half of the workloads → the other half, and the other → this one, for each division."""
    unique = np.unique(case.rows.workload_index)
    found = []
    for seed in range(divisions):
        chosen = np.random.default_rng(seed).permutation(unique)[: len(unique) // 2]
        held: BoolArray = np.isin(case.rows.workload_index, chosen)
        found += [outcome(case.rows.select(~test), case.rows.select(test), case, intervals=True) for test in (~held, held)]
    return found


def mean_score(parts: list[pd.DataFrame]) -> Score:
    """Mean of the errors of several tests with equal weights."""
    return {str(name): float(value) for name, value in pd.DataFrame([summary(part) for part in parts]).mean().items()}


def by_length(parts: list[pd.DataFrame]) -> dict[str, Score]:
    """Scores of runs shorter and longer than SHORT_S."""
    runs = pd.concat(parts)
    short = runs["measured_latency"] < SHORT_S
    chosen = {"below 20 ms": short, "from 20 ms": ~short}
    return {name: summary(runs[own]) for name, own in chosen.items()}


def families(case: Case) -> dict[str, pd.DataFrame]:
    """Each model family left out of the fit."""
    names = np.array([case.rows.workloads[i].model_family for i in case.rows.workload_index])
    outs = {str(name): names == name for name in np.unique(names)}
    return {name: outcome(case.rows.select(~out), case.rows.select(out), case, intervals=True) for name, out in outs.items()}


def other_clocks(case: Case) -> WorkloadRows:
    """The runs at clocks other than the reference clock."""
    return case.rows.select(np.abs(case.rows.asked_clock_mhz(case.gpu) - REFERENCE_CLOCK_MHZ) > 1.0)


def run(data: Path, divisions: int) -> Iterator[tuple[str, Score]]:
    """Every test and its errors."""
    a100, clocks, a10 = (read_case(data / "energaizer" / f"{name}.csv") for name in ("a100_900mhz", "a100_clocks", "a10_900mhz"))
    yield from _of_board("A100", a100, divisions)
    yield "A100 900 MHz -> other clocks", summary(outcome(a100.rows, other_clocks(clocks), a100, intervals=True))
    yield from _of_board("A10", a10, divisions)
    yield "A100 -> A10 by specification (latency)", summary(outcome(a100.rows, a10.rows, a100))


def _of_board(board: str, case: Case, divisions: int) -> Iterator[tuple[str, Score]]:
    parts = half_outcomes(case, divisions)
    yield f"{board} half", mean_score(parts)
    for name, one in by_length(parts).items():
        yield f"{board} half, {name}", one
    found = families(case)
    for name, left_out in found.items():
        yield f"{board} without {name}", summary(left_out)
    yield f"{board} language families left out, together", summary(*(found[name] for name in LANGUAGE))
    yield f"{board} families left out, together", summary(*found.values())
    for name, one in by_length(list(found.values())).items():
        yield f"{board} families, {name}", one


def simulated(draws: int) -> Iterator[tuple[str, Score]]:
    """Coverage of stated 90 % intervals for a planted spread between families; all simulated."""
    for ratio in RATIOS:
        held = planted_coverage(ratio, draws)
        shares = {"known": held.known, "unseen": held.unseen, "below 85 %": held.inside < 0.85, "above 95 %": held.inside > 0.95}
        yield f"simulated, spread between families {ratio:g} times that within", {name: float(np.mean(one)) for name, one in shares.items()}


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA, show_default=True)
@click.option("--divisions", default=10, show_default=True, help="Times that the workloads are divided; each half predicts the other.")
@click.option("--simulate", "draws", default=0, help="Draw so many collections of families with a planted spread, and nothing else.")
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, divisions: int, draws: int, as_json: bool) -> None:
    """Print every test's errors."""
    if draws or published(data / "energaizer"):
        show(({"test": name, **score} for name, score in (simulated(draws) if draws else run(data, divisions))), as_json)


if __name__ == "__main__":
    main()
