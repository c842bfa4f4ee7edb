"""A board that runs at its power limit: would a solved clock forecast its kernels better, and what do twenty probes do?

    python benchmarks/power_capped.py [--data ../shared/data] [--json]

GB200, matrix products in bf16: three of four rows of the published table (Apache-2.0) are at the limit of 1,200 W.  Coefficients of
latency come from H200.  "as specified" takes the clock for which the vendor quotes its rates; "clock solved" the highest clock at which the
power equation fits the limit, with energies of H200 or with those of GB200's own rows below the limit; "20 probes" are chosen kernels of
GB200 in a fit from H200's, without a solved clock, tested on the rows that were not offered as probes.  Mean absolute error and mean
error of the latency [%].

The second table asks what an estimate of a workload does, which solves the clock from the limit: the share of its published fp32 rate that
a board sustains in large matrix products, forecast by each shipped bundle from the board's specification alone, with the limit and with
none, beside the shares that NeuSight's measurements show (MIT; rows of these boards are no part of the tables at hand, the shares are).
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
from kernel_tables import cell_rows, gemm_cells, random_rows, read_table
from transfer import PROBES, selection_of, source_bundle

from estimator.board import board_tables
from estimator.bundles.content import Bundle
from estimator.bundles.files import load_bundle
from estimator.gpu import ClockTable, GpuSpec
from estimator.kernel_prediction import predict_kernels
from estimator.power_limit import UNLIMITED_W
from estimator.quantities import HZ_PER_MHZ, Array, BoolArray
from estimator.questions.estimates import estimate
from estimator.specifications import load_gpu
from estimator.workload import Workload, make_operator
from fitter.bundle.calibration import calibrate
from fitter.bundle.drafts import draft_from_rows
from fitter.bundle.export import board_knowledge
from fitter.bundle.probe_fit import probe_rows
from fitter.rows.columns import KernelRows
from fitter.validate.predictions import predict_kernel_rows

SOURCE, TARGET = "h200-sxm", "gb200"
LEAST_SHARE = 0.3
CLOCKS = 36
"""Clocks that are tried, evenly from this share of the highest on."""

NO_LIMIT = 20.0
"""Times the board's power limit: none, as far as kernels go."""


BUNDLES = ("a10-eager", "a100-pcie-40gb-eager")
SUSTAINED = {"l4": (0.27, 0.32), "t4": (0.38, 0.52), "h100-sxm": (0.77, 0.80), "a100-sxm-80gb": (0.83, 0.93)}
"""Shares of the published fp32 rate that boards reach in large products (NeuSight's bmm.csv and linear.csv, MIT): over its two
collections and, on T4, over kernels of 0.5 to 1 ms and of more than 5 ms [1]."""

PRODUCT = make_operator("gemm", "linear", "fp32", batch=1.0, m=8192.0, n=4096.0, k=4096.0)
PRODUCTS = 200.0
"""So many large products make the workload whose clock is solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """Share of its published fp32 rate that a board sustains [1]: by forecast with its power limit, and without one; as measured."""

    board: str
    bundle: str
    solved: float
    interval: tuple[float, float]
    unlimited: float
    measured: tuple[float, float]

    def line(self) -> str:
        """For people."""
        low, high = self.interval
        least, most = self.measured
        shares = f"{self.solved:10.2f}   {low:.2f} to {high:.2f}   {self.unlimited:12.2f}   {least:.2f} to {most:.2f}"
        return f"{self.board:16s} {self.bundle:22s} {shares}"


def sustained() -> Iterator[Sustained]:
    """Every board of SUSTAINED by every shipped bundle."""
    workload = Workload(name="products", operators=(PRODUCT,), counts=(PRODUCTS,))
    flop = 2.0 * PRODUCTS * PRODUCT["m"] * PRODUCT["n"] * PRODUCT["k"]
    for board, measured in SUSTAINED.items():
        gpu = load_gpu(board)
        peak = gpu.cuda_flop_per_clock["fp32"] * gpu.num_sms * gpu.sm_clock_max_mhz * HZ_PER_MHZ
        for name in BUNDLES:
            bundle = load_bundle(name)
            (found,) = estimate(workload, bundle, gpu=gpu)
            (free,) = estimate(workload, bundle, gpu=gpu, power_cap_w=UNLIMITED_W)
            shares = [flop / (seconds * peak) for seconds in (found.latency_s, found.latency_s_high, found.latency_s_low, free.latency_s)]
            yield Sustained(
                board=board, bundle=name, solved=shares[0], interval=(shares[1], shares[2]), unlimited=shares[3], measured=measured
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Errors of one way to forecast: (mean absolute, mean) [%] of rows at the limit, below it, and all."""

    way: str
    rows: int
    limited: tuple[float, float]
    below: tuple[float, float]
    everything: tuple[float, float]

    def line(self) -> str:
        """For people."""
        figures = "".join(f"{size:10.1f} / {bias:+5.1f}" for size, bias in (self.limited, self.below, self.everything))
        return f"{self.way:46s} {self.rows:6d}{figures}"


def outcome(way: str, rows: KernelRows, predicted_s: Array) -> Outcome:
    """Errors of predictions, shape (n,)."""
    error = 100.0 * (predicted_s / rows.latency_s - 1.0)

    def both(chosen: BoolArray) -> tuple[float, float]:
        return float(np.abs(error[chosen]).mean()), float(error[chosen].mean())

    everything = np.ones(len(rows), dtype=np.bool_)
    return Outcome(way=way, rows=len(rows), limited=both(rows.at_limit), below=both(~rows.at_limit), everything=both(everything))


def own_rows(rows: KernelRows, gpu: str) -> KernelRows:
    """Rows of a GPU with trusted power, or at the limit."""
    return rows.select((np.array(rows.gpus)[rows.gpu_index] == gpu) & (np.isfinite(rows.power_w) | rows.at_limit))


def below_limit(rows: KernelRows, gpu: GpuSpec) -> Bundle:
    """A bundle of the rows that are not at the limit; its power is what matters here."""
    free = rows.select(~rows.at_limit)
    return draft_from_rows(free, None, gpu, board_knowledge(selection_of(free), gpu).tables, 0).bundle


def solved_s(bundle: Bundle, gpu: GpuSpec, rows: KernelRows) -> Array:
    """Latency at the highest clock at which each kernel's power, by the bundle's equation, fits the limit of this board, shape (n,)."""
    clocks = np.linspace(LEAST_SHARE * gpu.sm_clock_max_mhz, gpu.sm_clock_max_mhz, CLOCKS)
    idle_w = board_tables(bundle, gpu).at(clocks).idle_w
    idle = ClockTable(sm_clock_mhz=tuple(clocks.tolist()), value=tuple(idle_w.tolist()), source="of the board with its limit")
    free = replace(gpu, power_limit_w=NO_LIMIT * gpu.power_limit_w, idle_w=idle)
    operators = rows.row_operators()
    found = predict_kernels(operators, bundle, free, sm_clock_mhz=np.full(len(rows), clocks[0]), warm=rows.l2_warm).latency_s
    for clock in clocks[1:]:
        table = predict_kernels(operators, bundle, free, sm_clock_mhz=np.full(len(rows), clock), warm=rows.l2_warm)
        found = np.where(table.power_w <= gpu.power_limit_w, table.latency_s, found)
    return found


def outcomes(folder: Path) -> Iterator[Outcome]:
    """All ways."""
    (cell,) = (cell for cell in gemm_cells() if cell.gpu == SOURCE and cell.precision == "bf16")
    prior = source_bundle(cell_rows(cell, folder), SOURCE)
    table = read_table(folder / "aiconfigurator/power.csv")
    target = load_gpu(TARGET)
    everything = own_rows(table, TARGET)
    chosen = [operator.family == "gemm" and operator.precision == "bf16" for operator in everything.row_operators()]
    rows = everything.select(np.array(chosen, dtype=np.bool_))
    plain = predict_kernels(
        rows.row_operators(), prior, target, sm_clock_mhz=np.full(len(rows), target.sm_clock_max_mhz), warm=rows.l2_warm
    )
    yield outcome("as specified", rows, plain.latency_s)
    for name, known in ((SOURCE, own_rows(table, SOURCE)), (TARGET, everything)):
        power = below_limit(known, load_gpu(name))
        bundle = replace(power, groups=prior.groups, residuals={}, tile_predictors={})
        yield outcome(f"clock solved, energies of {name}", rows, solved_s(bundle, target, rows))
    kept = random_rows(rows)
    pool, test = rows.select(kept), rows.select(~kept)
    probes = pool.select(probe_rows(pool, target, PROBES, prior))
    fitted = calibrate(selection_of(probes), target, prior=prior, seed=0).bundle
    yield outcome(f"{PROBES} probes, nothing solved", test, predict_kernel_rows(fitted, test).predicted_s)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=Path(__file__).resolve().parents[2] / "shared" / "data")
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, as_json: bool) -> None:
    """Print the errors of every way."""
    if not (data / "aiconfigurator").is_dir():
        click.echo(f"skipped: the published tables are not at {data}; --data names another folder", err=True)
        return
    found: list[Outcome | Sustained] = []
    if not as_json:
        click.echo(f"{'GEMM bf16, H200 to GB200':46s} {'rows':>6s}{'at limit':>18s}{'below':>18s}{'all':>18s}")
    for one in outcomes(data):
        found.append(one)
        if not as_json:
            click.echo(one.line())
    if not as_json:
        click.echo(f"\n{'share of fp32 rate':16s} {'from bundle':20s} {'with limit':>12s}   {'90 %':>12s}   {'without':>12s}   measured")
    for share in sustained():
        found.append(share)
        if not as_json:
            click.echo(share.line())
    if as_json:
        json.dump([asdict(one) for one in found], sys.stdout, indent=1)


if __name__ == "__main__":
    main()
