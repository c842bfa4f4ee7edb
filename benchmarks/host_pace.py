"""How much of the errors of short runs is the host's pace, which no operator list tells.

    python benchmarks/host_pace.py [--data ../shared/data] [--splits 20] [--json]

A host has two paces.  A run that changed from one to the other while it was measured shows both: its two readings of the latency give
their ratio.  Half of the workloads are fitted and the other half predicted, as in `whole_models.py`; beside the error of the
prediction stands that of an oracle that knows which pace each run had, told by which of the two predictions is nearer.  That
is a lower bound: the oracle also takes the slow pace where the prediction is short for another reason.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
import numpy as np

from benchmarks.whole_models import REFERENCE_CLOCK_MHZ, SHORT_S, Case, mape, read_case
from estimator.prediction import estimate
from estimator.quantities import Array
from fitter.rows import WorkloadRows
from fitter.runs import fit_runs

HOST_PACED: Final = 0.5
"""A run is the host's where the slow pace adds this share of its own slowness to the latency [1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceErrors:
    """Errors in percent of runs below SHORT_S, as predicted and with the pace known, and of the longer ones.

    slow_share: of the short runs that the host paces, those that the oracle takes for slow.
    """

    test: str
    short: float
    short_pace_known: float
    longer: float
    slow_share: float


def pace_ratio(parts: list[WorkloadRows]) -> float:
    """Slow over quick pace: the median over short runs whose two readings show both."""
    apart = []
    for rows in parts:
        both = rows.perturbed & (rows.latency_s < SHORT_S)
        first, mean = rows.planned_latency_s[both], rows.latency_s[both]
        apart.append(np.maximum(first, mean) / np.minimum(first, mean))
    return float(np.median(np.concatenate(apart)))


def predictions(train: WorkloadRows, test: WorkloadRows, case: Case, ratio: float) -> Array:
    """Measured latency of each run of `test`, that of a fit of `train`, and the same with a host `ratio` times slower [s], shape (3, n)."""
    bundle = fit_runs(train, case.gpu, case.tables).bundle
    clocks = test.asked_clock_mhz(case.gpu)
    rows = [test.latency_s]
    for pace in (bundle.host.launch_s, bundle.host.launch_s * ratio):
        found = [
            estimate(workload, bundle, sm_clock_mhz=float(clock), host_launch_s=pace)[0].latency_s
            for workload, clock in zip(test.row_workloads(), clocks, strict=True)
        ]
        rows.append(np.array(found))
    return np.array(rows)


def pace_errors(test: str, latencies_s: Array, ratio: float) -> PaceErrors:
    """The errors of one test; latencies as from `predictions`."""
    measured, quick, slow = latencies_s
    taken = np.abs(np.log(slow / measured)) < np.abs(np.log(quick / measured))
    known = np.where(taken, slow, quick)
    short = measured < SHORT_S
    host_paced = short & (slow / quick - 1.0 > HOST_PACED * (ratio - 1.0))
    return PaceErrors(
        test=test,
        short=mape(quick[short], measured[short]),
        short_pace_known=mape(known[short], measured[short]),
        longer=mape(quick[~short], measured[~short]),
        slow_share=float(np.mean(taken[host_paced])),
    )


def run(data: Path, splits: int) -> tuple[float, list[PaceErrors]]:
    """The ratio of the paces and the errors of every test."""
    a100, clocks, a10 = (read_case(data / "energaizer" / f"{name}.csv") for name in ("a100_900mhz", "a100_clocks", "a10_900mhz"))
    ratio = pace_ratio([case.rows for case in (a100, clocks, a10)])
    found = [_half("A100 half", a100, splits, ratio)]
    other = clocks.rows.select(np.abs(clocks.rows.asked_clock_mhz(clocks.gpu) - REFERENCE_CLOCK_MHZ) > 1.0)
    found.append(pace_errors("A100 900 MHz -> other clocks", predictions(a100.rows, other, a100, ratio), ratio))
    found.append(_half("A10 half", a10, splits, ratio))
    return ratio, found


def _half(test: str, case: Case, splits: int, ratio: float) -> PaceErrors:
    unique = np.unique(case.rows.workload_index)
    parts = []
    for seed in range(splits):
        chosen = np.random.default_rng(seed).permutation(unique)[: len(unique) // 2]
        train = np.isin(case.rows.workload_index, chosen)
        parts.append(predictions(case.rows.select(train), case.rows.select(~train), case, ratio))
    return pace_errors(test, np.concatenate(parts, axis=1), ratio)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=Path(__file__).resolve().parents[2] / "shared" / "data", show_default=True)
@click.option("--splits", default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, splits: int, as_json: bool) -> None:
    """Print errors of short runs as predicted and with the pace known."""
    if not (data / "energaizer").is_dir():
        click.echo(f"skipped: the published runs are not at {data / 'energaizer'}; --data names another folder", err=True)
        return
    ratio, found = run(data, splits)
    if as_json:
        click.echo(json.dumps({"slow over quick pace": ratio, "tests": [asdict(one) for one in found]}, indent=1))
        return
    click.echo(f"slow over quick pace: {ratio:.2f}")
    for one in found:
        known = f"with the pace known {one.short_pace_known:4.1f} %"
        click.echo(f"{one.test:30s} below 20 ms {one.short:4.1f} %, {known}; from 20 ms {one.longer:4.1f} %")
        click.echo(f"{'':30s} slow: {one.slow_share:.0%} of the short runs that the host paces")


if __name__ == "__main__":
    main()
