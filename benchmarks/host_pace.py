"""How much of the errors of short runs is the host's pace, which no operator list tells.

    python benchmarks/host_pace.py [--data ../shared/data] [--splits 20] [--json]

A host has two paces.  A run that changed from one to the other while it was measured shows both: its two readings of the latency give
their ratio r.  Half of the workloads are fitted and the other half predicted, as in `whole_models.py`.  Beside the error of the prediction
stand

* the error with the pace known: which pace each run had is told by which of two predictions is nearer.  A lower bound, as the slow pace is
  also taken where the prediction is short for another reason;
* the floor: what a model errs that is exact at the usual pace and is not told which pace a run has.  With a share of slow runs below
  r / (1 + r) no other forecast errs less.  By readings alone: only runs count as slow whose two readings show it, the mean above the
  first, which takes no model;
* the noise: how far the two readings of runs at one pace lie apart, over √2.  The mean over thousands of iterations errs less than the
  first one, so a bound from above;
* the errors of launch-bound runs, whose time follows the host's: the other short runs lie between the host's pace and the GPU's, or are the
  GPU's;
* the error taken apart by what paces a run, with the mean signed error: a host that spends time before the GPU has work leaves runs of the
  GPU too short, one whose maximum with the GPU is too blunt runs between the two too long.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
import numpy as np
from whole_models import REFERENCE_CLOCK_MHZ, SHORT_S, Case, mape, read_case

from estimator.quantities import Array, BoolArray
from estimator.questions.estimates import estimate
from fitter.bundle.runs import fit_runs
from fitter.rows.columns import WorkloadRows, join_rows

LAUNCH_BOUND: Final = 0.9
"""A run is launch-bound where the slow pace adds this share of its own slowness to the latency [1]."""

GPU_BOUND: Final = 0.1
"""The GPU paces a run where the slow pace adds less than this share of its own slowness [1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Short runs paced alike: their share of the short runs [1], mean absolute error, and mean error (predicted over measured) [%]."""

    share: float
    error: float
    signed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceErrors:
    """Errors in percent.

    short, short_pace_known                 of runs below SHORT_S, as predicted and with the pace known
    floor, floor_shown                      of a model that is exact but for the pace; by what the runs' own readings show
    launch_bound, launch_bound_pace_known   as the first two, of short runs that follow the host
    longer                                  of the other runs, as predicted
    noise, longer_noise                     of readings at one pace
    launch_bound_share, slow_share          of the short runs are launch-bound; of these are taken for slow [1]
    more, more_pace_known                   (value, standard error) of short minus longer, as predicted and with the pace known; by runs
    parts                                   the short runs by what paces them; shares times errors add up to `short`
    """

    test: str
    short: float
    short_pace_known: float
    floor: float
    floor_shown: float
    launch_bound: float
    launch_bound_pace_known: float
    longer: float
    noise: float
    longer_noise: float
    launch_bound_share: float
    slow_share: float
    more: tuple[float, float]
    more_pace_known: tuple[float, float]
    parts: dict[str, Part]


def pace_ratio(parts: list[WorkloadRows]) -> float:
    """Slow over quick pace: the median over short runs whose two readings show both."""
    apart = []
    for rows in parts:
        both = rows.perturbed & (rows.latency_s < SHORT_S)
        first, mean = rows.planned_latency_s[both], rows.latency_s[both]
        apart.append(np.maximum(first, mean) / np.minimum(first, mean))
    return float(np.median(np.concatenate(apart)))


def predictions(train: WorkloadRows, test: WorkloadRows, case: Case, ratio: float) -> Array:
    """Latency of each run of `test` by a fit of `train`, and the same with a host `ratio` times slower [s], shape (2, n)."""
    bundle = fit_runs(train, case.gpu, case.tables).bundle
    clocks = test.asked_clock_mhz(case.gpu)
    found = [
        [
            estimate(workload, bundle, sm_clock_mhz=float(clock), host_launch_s=pace)[0].latency_s
            for workload, clock in zip(test.row_workloads(), clocks, strict=True)
        ]
        for pace in (bundle.host.launch_s, bundle.host.launch_s * ratio)
    ]
    return np.array(found)


def pace_errors(test: str, rows: WorkloadRows, predicted_s: Array, ratio: float) -> PaceErrors:
    """The errors of one test; predicted_s as from `predictions`."""
    measured, (quick, slow) = rows.latency_s, predicted_s
    taken = np.abs(np.log(slow / measured)) < np.abs(np.log(quick / measured))
    known = np.where(taken, slow, quick)
    short = measured < SHORT_S
    follows = (slow / quick - 1.0) / (ratio - 1.0)
    host, gpu = short & (follows > LAUNCH_BOUND), short & (follows < GPU_BOUND)
    paced_by = {"host, slow pace": host & taken, "host, usual pace": host & ~taken, "both": short & ~host & ~gpu, "GPU": gpu}
    shown = rows.perturbed & (measured > rows.planned_latency_s)
    return PaceErrors(
        test=test,
        short=mape(quick[short], measured[short]),
        short_pace_known=mape(known[short], measured[short]),
        floor=100.0 * float(np.mean(np.where(taken, 1.0 - quick / slow, 0.0)[short])),
        floor_shown=mape(np.where(shown, rows.planned_latency_s, measured)[short], measured[short]),
        launch_bound=mape(quick[host], measured[host]),
        launch_bound_pace_known=mape(known[host], measured[host]),
        longer=mape(quick[~short], measured[~short]),
        noise=_noise(rows, short),
        longer_noise=_noise(rows, ~short),
        launch_bound_share=float(np.mean(host[short])),
        slow_share=float(np.mean(taken[host])),
        more=_more(quick / measured - 1.0, short, rows),
        more_pace_known=_more(known / measured - 1.0, short, rows),
        parts={name: _part(100.0 * (quick / measured - 1.0)[runs], int(short.sum())) for name, runs in paced_by.items() if runs.any()},
    )


def _more(error: Array, short: BoolArray, rows: WorkloadRows) -> tuple[float, float]:
    """By how much more the short runs err than the others [%], and its standard error; what one run errs in several tests counts once."""
    _, run = np.unique(np.stack([rows.source_index, rows.row]), axis=1, return_inverse=True)
    mean = 100.0 * np.bincount(run, np.abs(error)) / np.bincount(run)
    of_short = np.bincount(run, short) > 0
    parts = mean[of_short], mean[~of_short]
    variance = sum(float(part.var(ddof=1)) / len(part) if len(part) > 1 else np.nan for part in parts)
    return float(parts[0].mean() - parts[1].mean()) if all(len(part) for part in parts) else float("nan"), float(np.sqrt(variance))


def _part(error: Array, short_runs: int) -> Part:
    """Runs with these errors in percent, of so many short ones."""
    return Part(share=len(error) / short_runs, error=float(np.abs(error).mean()), signed=float(error.mean()))


def _noise(rows: WorkloadRows, chosen: BoolArray) -> float:
    steady = chosen & ~rows.perturbed
    return mape(rows.planned_latency_s[steady], rows.latency_s[steady]) / float(np.sqrt(2.0))


def run(data: Path, splits: int) -> tuple[float, list[PaceErrors]]:
    """The ratio of the paces and the errors of every test."""
    a100, clocks, a10 = (read_case(data / "energaizer" / f"{name}.csv") for name in ("a100_900mhz", "a100_clocks", "a10_900mhz"))
    ratio = pace_ratio([case.rows for case in (a100, clocks, a10)])
    found = [_half("A100 half", a100, splits, ratio)]
    other = clocks.rows.select(np.abs(clocks.rows.asked_clock_mhz(clocks.gpu) - REFERENCE_CLOCK_MHZ) > 1.0)
    found.append(pace_errors("A100 900 MHz -> other clocks", other, predictions(a100.rows, other, a100, ratio), ratio))
    found.append(_half("A10 half", a10, splits, ratio))
    return ratio, found


def _half(test: str, case: Case, splits: int, ratio: float) -> PaceErrors:
    unique = np.unique(case.rows.workload_index)
    parts, tested = [], []
    for seed in range(splits):
        chosen = np.random.default_rng(seed).permutation(unique)[: len(unique) // 2]
        train = np.isin(case.rows.workload_index, chosen)
        tested.append(case.rows.select(~train))
        parts.append(predictions(case.rows.select(train), tested[-1], case, ratio))
    rows = join_rows(tested)
    assert isinstance(rows, WorkloadRows)
    return pace_errors(test, rows, np.concatenate(parts, axis=1), ratio)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=Path(__file__).resolve().parents[2] / "shared" / "data", show_default=True)
@click.option("--splits", default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, splits: int, as_json: bool) -> None:
    """Print errors of short runs as predicted and with the pace known, and what a model that is exact but for the pace would err."""
    if not (data / "energaizer").is_dir():
        click.echo(f"skipped: the published runs are not at {data / 'energaizer'}; --data names another folder", err=True)
        return
    ratio, found = run(data, splits)
    if as_json:
        click.echo(json.dumps({"slow over quick pace": ratio, "tests": [asdict(one) for one in found]}, indent=1))
        return
    click.echo(f"slow over quick pace: {ratio:.2f}")
    for one in found:
        for line in _lines(one):
            click.echo(line)


def _lines(one: PaceErrors) -> list[str]:
    bound = f"{one.launch_bound:.1f} %, with the pace known {one.launch_bound_pace_known:.1f} %"
    return [
        f"{one.test:30s} below 20 ms {one.short:.1f} %, with the pace known {one.short_pace_known:.1f} %; from 20 ms {one.longer:.1f} %",
        "    more by " + ", with the pace known ".join(f"{value:+.1f} ± {std:.1f}" for value, std in (one.more, one.more_pace_known)),
        f"    exact but for the pace: {one.floor:.1f} % below 20 ms, {one.floor_shown:.1f} % by readings alone",
        f"    noise of readings at one pace: {one.noise:.1f} %, from 20 ms {one.longer_noise:.1f} %",
        f"    launch-bound {one.launch_bound_share:.0%} of those below 20 ms: {bound}; slow are {one.slow_share:.0%} of these",
        *(f"    paced by {name:17s} {part.share:3.0%}: {part.error:.1f} %, mean {part.signed:+.1f} %" for name, part in one.parts.items()),
    ]


if __name__ == "__main__":
    main()
