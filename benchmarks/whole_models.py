"""Errors of whole-model latency and power on published runs: fit on some, predict the others.

    python benchmarks/whole_models.py [--data ../shared/data] [--divisions 10] [--simulate 0] [--json]

Targets have start-up removed (see docs/model.md); errors against the raw targets stand beside them.  All figures are
mean absolute percentage errors.  Half to half is shown by length of the run as well, with how well short runs repeat.  The workloads are
divided at random, and each half predicts the other, so that runs which no fit predicts well lie as often among those fitted as among those
predicted.  One way alone, the mean share inside over 20 divisions has a standard error of two points.

Three figures judge the stated 90 % intervals: the share of runs inside, the mean square of error over stated deviation, and the mean half
width.  Runs of one family err alike, so the share of left-out families' runs varies from one collection of families to the next:
`--simulate N` draws N collections with a planted spread between families (`planted_spread`) and needs no data.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
from planted_spread import RATIOS, planted_coverage

from estimator.model.power import BoardTables
from estimator.questions.estimates import estimate
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import NORMAL_90, Array, BoolArray
from estimator.vocabulary.specifications import load_gpu
from fitter.bundle.runs import fit_runs, stated_uncertainty
from fitter.rows.columns import WorkloadRows
from fitter.rows.selection import read_selection
from fitter.validate.predictions import facing_std

REFERENCE_CLOCK_MHZ = 900.0
LANGUAGE = ("bert", "gpt2", "opt")

SHORT_S = 0.02
"""Below this a run of the published lists is mostly paced by the host's launches [s]."""


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
    """Errors of one test in percent: latency, power, energy; the same against raw targets.  Of stated 90 % intervals: the share of runs
    inside, the mean square of error over deviation, and the mean half width [% of the logarithm].
    """

    latency: float
    power: float
    energy: float
    raw_latency: float
    raw_power: float
    latency_coverage: float = float("nan")
    power_coverage: float = float("nan")
    latency_square: float = float("nan")
    power_square: float = float("nan")
    latency_width: float = float("nan")
    power_width: float = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Runs and what a fit of others said of them, columns of shape (n,).

    latency_ln_std, power_ln_std: stated deviations of the logarithms on the side of the measured value; nan where none was asked for.
    """

    rows: WorkloadRows
    latency_s: Array
    power_w: Array
    latency_ln_std: Array
    power_ln_std: Array

    def scores(self) -> Array:
        """Error over stated deviation of ln(latency) and ln(power), shape (n, 2)."""
        errors = np.log([self.rows.latency_s / self.latency_s, self.rows.power_w / self.power_w])
        result: Array = (errors / self.ln_std()).T
        return result

    def ln_std(self) -> Array:
        """Stated deviations of ln(latency) and ln(power), shape (2, n)."""
        return np.array([self.latency_ln_std, self.power_ln_std])

    def select(self, keep: BoolArray) -> "Outcome":
        """The runs `keep`."""
        columns = {name: getattr(self, name)[keep] for name in Outcome.__slots__ if name != "rows"}
        return Outcome(rows=self.rows.select(keep), **columns)


def outcome(train: WorkloadRows, test: WorkloadRows, case: Case, *, target: Case | None = None, intervals: bool = False) -> Outcome:
    """Fit `train` on its GPU and predict `test` (on the GPU of `target`)."""
    other = target or case
    bundle = fit_runs(train, case.gpu, case.tables).bundle
    if intervals:
        bundle = replace(bundle, uncertainty=stated_uncertainty(train, case.gpu, case.tables, seed=0, bundle=bundle))
    clocks = test.asked_clock_mhz(other.gpu)
    found = [
        estimate(workload, bundle, sm_clock_mhz=float(clock), gpu=other.gpu)[0]
        for workload, clock in zip(test.row_workloads(), clocks, strict=True)
    ]
    latency, power = np.array([e.latency_s for e in found]), np.array([e.power_w for e in found])
    limits_s = np.log([(e.latency_s_low, e.latency_s, e.latency_s_high) for e in found])
    limits_w = np.log([(e.power_w_low, e.power_w, e.power_w_high) for e in found])
    unknown = np.full(len(found), np.nan)
    return Outcome(
        rows=test,
        latency_s=latency,
        power_w=power,
        latency_ln_std=facing_std(test.latency_s, limits_s) if intervals else unknown,
        power_ln_std=facing_std(test.power_w, limits_w) if intervals else unknown,
    )


def summary(*parts: Outcome) -> Score:
    """Errors over the runs of all parts."""

    def error(predicted: Callable[[Outcome], Array], measured: Callable[[WorkloadRows], Array]) -> float:
        return mape(np.concatenate([predicted(part) for part in parts]), np.concatenate([measured(part.rows) for part in parts]))

    scores = np.concatenate([part.scores() for part in parts])
    covered = np.where(np.isnan(scores), np.nan, np.abs(scores) < NORMAL_90).mean(axis=0)
    squares = np.mean(scores**2, axis=0)
    widths = 100.0 * NORMAL_90 * np.concatenate([part.ln_std() for part in parts], axis=1).mean(axis=1)
    return Score(
        latency=error(lambda part: part.latency_s, lambda rows: rows.latency_s),
        power=error(lambda part: part.power_w, lambda rows: rows.power_w),
        energy=error(lambda part: part.latency_s * part.power_w, lambda rows: rows.energy_j),
        raw_latency=error(lambda part: part.latency_s, lambda rows: rows.raw_latency_s),
        raw_power=error(lambda part: part.power_w, lambda rows: rows.raw_power_w),
        latency_coverage=float(covered[0]),
        power_coverage=float(covered[1]),
        latency_square=float(squares[0]),
        power_square=float(squares[1]),
        latency_width=float(widths[0]),
        power_width=float(widths[1]),
    )


def score(train: WorkloadRows, test: WorkloadRows, case: Case, *, target: Case | None = None, intervals: bool = False) -> Score:
    """Errors of one test; arguments as those of `outcome`."""
    return summary(outcome(train, test, case, target=target, intervals=intervals))


def half_outcomes(case: Case, divisions: int) -> list[Outcome]:
    """Random half of the workloads → the other half, and the other → this one, for each division."""
    unique = np.unique(case.rows.workload_index)
    found = []
    for seed in range(divisions):
        chosen = np.random.default_rng(seed).permutation(unique)[: len(unique) // 2]
        held: BoolArray = np.isin(case.rows.workload_index, chosen)
        found += [outcome(case.rows.select(~test), case.rows.select(test), case, intervals=True) for test in (~held, held)]
    return found


def coverage_error(parts: list[Outcome]) -> tuple[float, float]:
    """Standard error of the mean shares of latencies and powers inside, from division to division; parts: as from `half_outcomes`."""
    inside = np.array([(one.latency_coverage, one.power_coverage) for one in map(summary, parts)]).reshape(-1, 2, 2).mean(axis=1)
    latency, power = inside.std(axis=0, ddof=1) / np.sqrt(len(inside)) if len(inside) > 1 else (float("nan"), float("nan"))
    return float(latency), float(power)


def mean_score(parts: list[Outcome]) -> Score:
    """Mean of the errors of several tests, all alike."""
    scores = [summary(part) for part in parts]
    return Score(**{name: float(np.mean([getattr(s, name) for s in scores])) for name in Score.__slots__})


def by_length(parts: list[Outcome]) -> dict[str, Score]:
    """Runs shorter and longer than SHORT_S, and the short ones whose pace did not change while they were measured."""
    short = [part.select(part.rows.latency_s < SHORT_S) for part in parts]
    return {
        "below 20 ms": summary(*short),
        "below 20 ms, at one pace": summary(*(part.select(~part.rows.perturbed) for part in short)),
        "from 20 ms": summary(*(part.select(part.rows.latency_s >= SHORT_S) for part in parts)),
    }


def repeatability(rows: WorkloadRows) -> tuple[float, float]:
    """How far the two readings that each run gives of its latency lie apart, in percent: runs below SHORT_S, and the others.

    The number of iterations was chosen from one timed iteration: the first reading.  The mean over all of them is the second.
    """
    apart = np.abs(rows.planned_latency_s / rows.latency_s - 1.0) * 100.0
    short = rows.latency_s < SHORT_S
    return float(apart[short].mean()), float(apart[~short].mean())


def families(case: Case) -> dict[str, Outcome]:
    """Each model family left out of the fit."""
    names = np.array([case.rows.workloads[i].model_family for i in case.rows.workload_index])
    found = {}
    for name in np.unique(names):
        out = names == name
        found[str(name)] = outcome(case.rows.select(~out), case.rows.select(out), case, intervals=True)
    return found


def run(data: Path, divisions: int, report: Callable[[str, Score], None], say: Callable[[str], None]) -> None:
    """Every test, reported as it ends."""
    a100, clocks, a10 = (read_case(data / "energaizer" / f"{name}.csv") for name in ("a100_900mhz", "a100_clocks", "a10_900mhz"))
    _of_board("A100", a100, divisions, report, say)
    other = clocks.rows.select(np.abs(clocks.rows.asked_clock_mhz(clocks.gpu) - REFERENCE_CLOCK_MHZ) > 1.0)
    report("A100 900 MHz -> other clocks", score(a100.rows, other, a100, target=clocks, intervals=True))
    say("A100 other clocks: two readings of one run differ by {:.1f} % below 20 ms, by {:.1f} % from there".format(*repeatability(other)))
    _of_board("A10", a10, divisions, report, say)
    report("A100 -> A10 by specification (latency)", score(a100.rows, a10.rows, a100, target=a10))


def _of_board(board: str, case: Case, divisions: int, report: Callable[[str, Score], None], say: Callable[[str], None]) -> None:
    parts = half_outcomes(case, divisions)
    report(f"{board} half", mean_score(parts))
    say("{}: standard error of the mean shares inside, by divisions {:.3f} / {:.3f}".format(board, *coverage_error(parts)))
    for name, one in by_length(parts).items():
        report(f"{board} half, {name}", one)
    say("{}: two readings of one run differ by {:.1f} % below 20 ms, by {:.1f} % from there".format(board, *repeatability(case.rows)))
    found = families(case)
    for name, left_out in found.items():
        report(f"{board} without {name}", summary(left_out))
    report(f"{board} language families left out, together", summary(*(found[name] for name in LANGUAGE)))
    report(f"{board} families left out, together", summary(*found.values()))
    by_family = by_length(list(found.values()))
    report(f"{board} families, below 20 ms", by_family["below 20 ms"])
    report(f"{board} families, from 20 ms", by_family["from 20 ms"])


def simulate(draws: int, say: Callable[[str], None]) -> list[dict[str, object]]:
    """What stated 90 % intervals hold where the spread between families is planted, a row a ratio; all simulated."""
    found: list[dict[str, object]] = []
    for ratio in RATIOS:
        held = planted_coverage(ratio, draws)
        known, unseen = float(held.known.mean()), float(held.unseen.mean())
        few, many = float(np.mean(held.inside < 0.85)), float(np.mean(held.inside > 0.95))
        found.append({"ratio": ratio, "known": known, "unseen": unseen, "below 85 %": few, "above 95 %": many})
        say(f"simulated, spread between families {ratio:g} times that within: inside are {known:.1%} of known families' runs")
        say(f"    and {unseen:.1%} of unseen ones'; of all left-out runs below 85 % in {few:.0%} of the draws, above 95 % in {many:.0%}")
    return found


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=Path(__file__).resolve().parents[2] / "shared" / "data", show_default=True)
@click.option("--divisions", default=10, show_default=True, help="Times that the workloads are divided; each half predicts the other.")
@click.option("--simulate", "draws", default=0, help="Draw so many collections of families with a planted spread, and nothing else.")
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, divisions: int, draws: int, as_json: bool) -> None:
    """Print every test's errors."""
    rows: list[dict[str, object]] = []
    if draws:
        rows = simulate(draws, lambda text: None if as_json else click.echo(text))
        if as_json:
            click.echo(json.dumps(rows, indent=1))
        return

    def report(name: str, one: Score) -> None:
        rows.append({"test": name} | {key: getattr(one, key) for key in Score.__slots__})
        if not as_json:
            click.echo(
                f"{name:42s} latency {one.latency:5.2f}  power {one.power:5.2f}  energy {one.energy:5.2f}   "
                f"raw {one.raw_latency:5.2f} / {one.raw_power:5.2f}   coverage {one.latency_coverage:.3f} / {one.power_coverage:.3f}"
                f"   squares {one.latency_square:.2f} / {one.power_square:.2f}"
                f"   half widths {one.latency_width:.1f} / {one.power_width:.1f}"
            )

    if not (data / "energaizer").is_dir():
        click.echo(f"skipped: the published runs are not at {data / 'energaizer'}; --data names another folder", err=True)
        return
    run(data, divisions, report, lambda text: None if as_json else click.echo(text))
    if as_json:
        click.echo(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
