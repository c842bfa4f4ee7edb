"""Value of a part of a campaign's time on a simulated board: the choice of `collect --budget` compared with the whole campaign.

The usual budget of `quick`, 15 minutes at three clocks, is 0.15 of all its rows.

    python benchmarks/active_selection.py [--board a100-pcie-40gb] [--share 0.15] [--full] [--pool-seed 1] [--draws 2] [--json]

The code of `collect` measures every campaign, including its budget, sensor, warm-up and idle power, and the code of `fit` fits it.
Errors are those of kernels of two other seeds, the same for all, none of them in the campaign: mean / median / 95th percentile in percent
of latency, power and energy at predicted latency; ratios are means over those of the whole campaign.  "timed" rows have no power.
The board is simulated: the results compare choices; they do not state the errors on a real board.
"""

import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
from showing import show

from collector.bench import open_bench
from collector.campaigns.files import CampaignSpec, load_campaign
from collector.campaigns.plan import chosen_plan, plan_campaign
from collector.campaigns.running import Campaign, campaign_key
from collector.campaigns.selection import hastened
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.specifications import load_gpu
from fitter.bundle.data_facts import board_knowledge
from fitter.bundle.drafts import draft_from_rows
from fitter.rows.columns import KernelRows
from fitter.rows.selection import read_selection
from fitter.validate.predictions import predict_kernel_rows

CLOCKS_MHZ = {
    "a100-pcie-40gb": (510.0, 900.0, 1410.0),
    "h200-sxm": (600.0, 1200.0, 1980.0),
    "v100-pcie-32gb": (510.0, 945.0, 1380.0),
}
HELD_OUT_SEEDS, BOARD_SEED = (2, 3), 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of held-out kernels [%]: mean, median, 95th percentile; rows, and rows with time only; time of board and computer."""

    way: str
    rows: int
    timed: int
    board_s: float
    latency: tuple[float, float, float]
    power: tuple[float, float, float]
    energy: tuple[float, float, float]
    cpu_s: float


def measured(spec: CampaignSpec, board: str, seed: int, share: float | None, choice_seed: int, output: Path) -> tuple[int, int, float]:
    """Measure a campaign, or a choice for a share of its time, into a file; returns rows, rows with time only, and board time [s]."""
    with open_bench(f"sim:{board}", seed=BOARD_SEED) as bench:
        plan = plan_campaign(spec, CLOCKS_MHZ[board], (), seed, bench)
        budget_s = math.inf if share is None else share * plan.estimated_s
        if share is not None:
            spec = hastened(spec)
            plan = chosen_plan(spec, plan, bench.gpu_spec, budget_s, choice_seed)
        outcome = Campaign(bench, spec, plan, campaign_key(bench, spec, plan, (), seed), output, budget_s=budget_s).run()
    return outcome.rows, 0 if plan.choice is None else plan.choice.timed, outcome.board_time_s


def errors(path: Path, held_out: KernelRows, gpu: GpuSpec) -> tuple[tuple[float, float, float], ...]:
    """Errors of latency, power and energy of a fit of a file [%]."""
    selection = read_selection([path])
    bundle = draft_from_rows(selection.kernels, None, gpu, board_knowledge(selection, gpu), 0).bundle
    unknown = np.full(len(held_out), np.nan)
    found = predict_kernel_rows(bundle, replace(held_out, tile_m=unknown, tile_n=unknown, split_k=unknown))
    latency, power = ((found[f"predicted_{name}"] / found[f"measured_{name}"]).to_numpy() for name in ("latency", "power"))
    return tuple(_figures(100.0 * np.abs(ratio - 1.0)) for ratio in (latency, power, latency * power))


def _figures(error: np.ndarray) -> tuple[float, float, float]:
    return float(np.nanmean(error)), float(np.nanmedian(error)), float(np.nanquantile(error, 0.95))


def scores(board: str, campaign: str, share: float, pool_seed: int, draws: int, folder: Path) -> Iterator[Score]:
    """Scores of the whole campaign, then of the choices."""
    gpu, spec = load_gpu(board), load_campaign(campaign)
    apart = [folder / f"held-out-{seed}.parquet" for seed in HELD_OUT_SEEDS]
    for seed, path in zip(HELD_OUT_SEEDS, apart, strict=True):
        measured(replace(load_campaign("quick"), every_clock_share=0.0), board, seed, None, 0, path)
    everything = read_selection(apart).kernels
    assert everything is not None
    ways = [("whole", None, 0), *((f"spread {draw}", share, draw) for draw in range(1, draws + 1))]
    held_out: KernelRows | None = None
    for name, part, seed in ways:
        started = time.process_time()
        path = folder / f"{name}.parquet"
        rows, timed, board_s = measured(spec, board, pool_seed, part, seed, path)
        if held_out is None:  # anchors and kernels drawn by both seeds are in the whole campaign
            pool = read_selection([path]).kernels
            assert pool is not None
            known = set(pool.operators)
            held_out = everything.select(np.array([operator not in known for operator in everything.row_operators()]))
        latency, power, energy = errors(path, held_out, gpu)
        cpu_s = time.process_time() - started
        yield Score(way=name, rows=rows, timed=timed, board_s=board_s, latency=latency, power=power, energy=energy, cpu_s=cpu_s)


@click.command()
@click.option("--board", type=click.Choice(sorted(CLOCKS_MHZ)), default="a100-pcie-40gb", show_default=True)
@click.option("--share", type=click.FloatRange(0.01, 0.9), default=0.15, show_default=True, help="Of the whole campaign's time.")
@click.option("--full", is_flag=True, help="Of the campaign `full`: ten thousand kernels, about half an hour of a computer.")
@click.option("--pool-seed", type=click.IntRange(4), help="Another draw of the campaign's kernels than the first.")
@click.option("--draws", type=click.IntRange(1), default=1, show_default=True, help="Random choices.")
@click.option("--json", "as_json", is_flag=True)
def main(board: str, share: float, full: bool, pool_seed: int | None, draws: int, as_json: bool) -> None:
    """Print the errors of each choice."""
    with tempfile.TemporaryDirectory() as folder:
        found = scores(board, "full" if full else "quick", share, pool_seed or 1, draws, Path(folder))
        whole: Score | None = None
        rows = []
        for score in found:
            whole = whole or score
            ratios = {f"{name} ratio": getattr(score, name)[0] / getattr(whole, name)[0] for name in ("latency", "power", "energy")}
            rows.append(asdict(score) | ratios)
        show(rows, as_json)


if __name__ == "__main__":
    main()
