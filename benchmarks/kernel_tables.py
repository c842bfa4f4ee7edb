"""Errors of kernel latency on published tables: fit some rows, predict the others.

    python benchmarks/kernel_tables.py [--data ../shared/data] [--only TEXT] [--without IDEA] [--json]

Splits: "random" leaves out a random fifth, "largest" the tenth of the rows with the most work, "unseen" all rows of a fifth of
the weight shapes (n, k), head counts or other sizes (SITE), "longer" the quarter with the longest rows, reductions or contexts of any work;
"larger" is another collection of larger shapes.  Errors are in percent, mean / median / 95th percentile; [target] of the mean
with the residual tier.
"""

import hashlib
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np
from showing import DATA, published, show

from estimator.engine.kernel_table import kernel_times
from estimator.model.kriging import PhaseFeatures
from estimator.model.lowering import KnownTiles
from estimator.model.residuals import work_of
from estimator.vocabulary.quantities import NORMAL_90, Array, BoolArray, IntArray
from estimator.vocabulary.specifications import load_gpu
from estimator.vocabulary.workload import Operator
from fitter.latency import residual_tier
from fitter.latency.groups import NO_SIBLINGS, Siblings, fit_kernel_groups
from fitter.latency.intervals import SITES
from fitter.latency.section import KernelSection, SectionFit
from fitter.rows.columns import KernelRows, join_rows
from fitter.rows.selection import read_selection

TARGETS = {
    "GEMM a100-sxm-80gb bf16": {"random": 5.5, "unseen": 5.5, "largest": 8.0},
    "GEMM h100-sxm bf16": {"random": 4.5, "unseen": 4.5, "largest": 4.7},
    "GEMM h200-sxm bf16": {"random": 4.7, "unseen": 4.7, "largest": 5.0},
    "GEMM h200-sxm fp8": {"random": 2.8, "unseen": 2.8, "largest": 4.0},
    "prefill a100-sxm-80gb": {"unseen": 6.0},
    "prefill h100-sxm": {"unseen": 4.7},
    "prefill h200-sxm": {"unseen": 3.7},
    "decode a100-sxm-80gb": {"unseen": 5.0},
    "decode h100-sxm": {"unseen": 7.0},
    "decode h200-sxm": {"unseen": 5.6},
    **{
        f"table {gpu} {kind}": {"unseen": goal, "largest": 1.3 * goal}
        for gpu, goals in {
            "b200-sxm": {"bf16": 4.5, "fp8": 3.0, "nvfp4": 2.5, "fp8_block": 4.5, "prefill": 3.2, "decode": 5.0},
            "l40s": {"bf16": 6.5, "fp8": 5.0, "fp8_block": 4.5, "prefill": 7.0, "decode": 7.0},
        }.items()
        for kind, goal in goals.items()
    },
}
"""Target of the mean error with the residual tier, by cell and split [%]."""

LEFT_OUT = 0.2
LARGEST = 0.1
LONGEST = 0.25
SITE = SITES | {"mla": ("heads", "batch"), "communication": ("message_bytes", "num_gpus")}
"""Fields that the split "unseen" leaves out together, by family; (n, k) elsewhere."""

LENGTH = {"softmax": "dim", "norm": "dim", "gemm": "k", "attention": "context"}
"""Field of the length of rows, by family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Rows of one GPU that belong together; named: whether tiles come from kernel names, in the fit and for the predicted rows.

    skewed: whether experts with unequal loads are among them.
    """

    name: str
    file: str
    gpu: str
    operators: tuple[str, ...]
    precision: str = ""
    named: bool = True
    skewed: bool = True

    def accepts(self, operator: Operator) -> bool:
        """Whether a row's operator belongs to the cell."""
        fits = operator.operator in self.operators and (not self.precision or operator.precision == self.precision)
        return fits and (self.skewed or not operator["skew"])


def gemm_cells() -> list[Cell]:
    """Tensor-core matrix products without kernel names."""
    file = "aiconfigurator/gemm_latency.csv"
    pairs = (("a100-sxm-80gb", "bf16"), ("h100-sxm", "bf16"), ("h200-sxm", "bf16"), ("h200-sxm", "fp8"))
    return [
        Cell(name=f"GEMM {gpu} {precision}", file=file, gpu=gpu, operators=("linear",), precision=precision) for gpu, precision in pairs
    ]


def fp32_cells() -> list[Cell]:
    """cuBLAS fp32 products with and without their kernel names, and vector kernels."""
    cells = []
    for gpu in ("a100-pcie-40gb", "v100-pcie-32gb"):
        for operator in ("bmm", "linear"):
            for named, label in ((True, "names"), (False, "no names")):
                file = f"neusight/{operator}_train.csv"
                cells.append(Cell(name=f"{operator} {gpu} {label}", file=file, gpu=gpu, operators=(operator,), named=named))
        for name, operators in (("elementwise", ("add", "gelu")), ("layer norm", ("layernorm",)), ("softmax", ("softmax",))):
            cells.append(Cell(name=f"{name} {gpu}", file="neusight/vector_train.csv", gpu=gpu, operators=operators))
    return cells


def attention_cells() -> list[Cell]:
    """Fused attention."""
    file = "aiconfigurator/attention_latency.csv"
    gpus = ("a100-sxm-80gb", "h100-sxm", "h200-sxm")
    return [Cell(name=f"{kind} {gpu}", file=file, gpu=gpu, operators=(kind,)) for kind in ("prefill", "decode") for gpu in gpus]


def kind_cells() -> list[Cell]:
    """Block-scaled fp8, experts, latent attention, collectives and conversions of several boards."""
    folder, cells = "aiconfigurator-2", []
    for gpu in ("h100-sxm", "h200-sxm", "b200-sxm"):
        file = f"{folder}/gemm_{gpu}.csv.gz"
        cells.append(Cell(name=f"GEMM {gpu} fp8_block", file=file, gpu=gpu, operators=("linear",), precision="fp8_block"))
    tables = {
        "mla": ("mla_prefill", "mla_decode"),
        "communication": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
        "quantise": ("quantise_static", "compute_scale"),
    }
    for gpu in ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "gb200", "l40s"):
        for table, operators in tables.items():
            file = f"{folder}/{table}.csv.gz"
            cells += [Cell(name=f"{one} {gpu}", file=file, gpu=gpu, operators=(one,)) for one in operators]
    for gpu, precision in (("h100-sxm", "bf16"), ("h100-sxm", "fp8"), ("b200-sxm", "bf16"), ("l40s", "bf16")):
        file = f"{folder}/moe_{gpu}.csv.gz"
        cells.append(Cell(name=f"moe {gpu} {precision}", file=file, gpu=gpu, operators=("moe",), precision=precision, skewed=False))
    return cells


def table_cells() -> list[Cell]:
    """Large tables with the L2 state of their rows."""
    folder, cells = "aiconfigurator-2", []
    for name in (name for name in TARGETS if name.startswith("table ")):
        _, gpu, kind = name.split()
        family, operator, precision = ("attention", kind, "") if kind in ("prefill", "decode") else ("gemm", "linear", kind)
        cells.append(Cell(name=name, file=f"{folder}/{family}_{gpu}.csv.gz", gpu=gpu, operators=(operator,), precision=precision))
    return cells


def _features_of_few(section: KernelSection, fit: SectionFit, index: IntArray, **named: bool) -> PhaseFeatures | None:
    return FEATURES(section, fit, index, **named) if len(index) <= residual_tier.MOST_KRIGED else None


FEATURES = KernelSection.features
IDEAS: dict[str, tuple[str, object]] = {
    "trees": ("fitter.latency.section.KernelSection.features", _features_of_few),
    "copies": ("fitter.rows.kernel_table._footprint", lambda kernel: (np.nan, np.nan)),
}
"""What stands in place of each idea: neighbours in place of trees; rows of tables warm or cold, not copies of weights of known size."""


@cache
def read_table(path: Path) -> KernelRows:
    """All accepted rows of a kernel table."""
    rows = read_selection([path]).kernels
    assert rows is not None
    return rows


def cell_rows(cell: Cell, folder: Path) -> KernelRows:
    """The rows of a cell."""
    rows = read_table(folder / cell.file)
    operators = rows.row_operators()
    keep = [rows.gpus[g].name == cell.gpu and cell.accepts(o) for g, o in zip(rows.gpu_index, operators, strict=True)]
    own = rows.select(np.array(keep, dtype=np.bool_))
    return own if cell.named else replace(own, **dict.fromkeys(("tile_m", "tile_n", "split_k"), np.full(len(own), np.nan)))


def random_rows(rows: KernelRows) -> BoolArray:
    """Rows to fit when a random fifth is left out."""
    return np.random.default_rng(0).random(len(rows)) < 1.0 - LEFT_OUT


def smaller_rows(rows: KernelRows) -> BoolArray:
    """Rows to fit when the largest tenth is left out."""
    work = work_of(rows.row_operators())
    return work < np.quantile(work, 1.0 - LARGEST)


def seen_rows(rows: KernelRows) -> BoolArray:
    """Rows to fit when a fifth of the weight shapes, or of the head counts, is left out, chosen by a digest."""
    return np.array([_fifth(operator) > 0 for operator in rows.row_operators()], dtype=np.bool_)


def _fifth(operator: Operator) -> int:
    text = ",".join([*(f"{operator[name]:.0f}" for name in SITE.get(operator.family, ("n", "k"))), "0"])
    percentile = int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16) % 100
    return int(percentile / (100 * LEFT_OUT))


def shorter_rows(rows: KernelRows) -> BoolArray:
    """Rows to fit when the longest quarter is left out; all if the family has no length."""
    operators = rows.row_operators()
    name = LENGTH.get(operators[0].family)
    if name is None:
        return np.ones(len(rows), dtype=np.bool_)
    length = np.array([operator[name] for operator in operators])
    return length <= np.quantile(length, 1.0 - LONGEST)


SPLITS: dict[str, Callable[[KernelRows], BoolArray]] = {"random": random_rows, "largest": smaller_rows, "unseen": seen_rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of rows left out [%]: mean, median, 95th percentile; by the equations alone and with the residual tier.

    coverage: share of rows inside their 90 % interval; width: its mean half width [%]; seconds, peak_mb: CPU time of
    the fit, most memory of the process.
    """

    cell: str
    split: str
    rows: int
    equations: tuple[float, float, float]
    refined: tuple[float, float, float]
    coverage: float
    width: float
    seconds: float
    peak_mb: float


def evaluate(
    cell: Cell,
    split: str,
    train: KernelRows,
    test: KernelRows,
    *,
    refine: bool = True,
    siblings: Siblings = NO_SIBLINGS,
) -> Score:
    """Fit `train`, predict `test`; `siblings`: of a similar GPU to start from."""
    gpu = load_gpu(cell.gpu)
    started = time.process_time()
    fit = fit_kernel_groups(train, gpu, seed=0, refine=refine, siblings=siblings)
    seconds, peak_mb = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    groups = {key: group.coefficients for key, group in fit.groups.items()}
    known = KnownTiles(tile_m=test.tile_m, tile_n=test.tile_n, split=test.split_k)
    arguments = {"sm_clock_mhz": test.clock_mhz(gpu), "warm": test.l2_warm}
    operators = test.row_operators()
    plain = kernel_times(operators, gpu, groups, known=known, tile_predictors=fit.tile_predictors, **arguments)
    full = kernel_times(operators, gpu, groups, known=known, tile_predictors=fit.tile_predictors, residuals=fit.residuals, **arguments)
    half = NORMAL_90 * full.log_std
    inside = np.abs(np.log(test.latency_s / full.latency_s)) <= half
    stated = np.isfinite(half)
    return Score(
        cell=cell.name,
        split=split,
        rows=len(test),
        equations=errors(plain.equations_s, test.latency_s),
        refined=errors(full.latency_s, test.latency_s),
        coverage=float(inside[stated].mean()) if stated.any() else float("nan"),
        width=float(100 * half[stated].mean()) if stated.any() else float("nan"),
        seconds=seconds,
        peak_mb=peak_mb,
    )


def errors(predicted: Array, measured: Array) -> tuple[float, float, float]:
    """Mean, median and 95th percentile of the absolute percentage error."""
    error = 100.0 * np.abs(predicted / measured - 1.0)
    return float(error.mean()), float(np.median(error)), float(np.quantile(error, 0.95))


def scores(folder: Path, only: str = "") -> Iterator[Score]:
    """Scores of every chosen cell and every split."""
    cells = gemm_cells() + attention_cells() + fp32_cells() + kind_cells() + table_cells()
    for cell in (cell for cell in cells if only in cell.name):
        rows = cell_rows(cell, folder)
        large = cell.name.startswith("table ")
        if not len(rows):
            continue
        for split, chosen in SPLITS.items():
            if (split == "unseen" and cell.file.startswith("neusight")) or (split == "random" and large):
                continue
            train = chosen(rows)
            yield evaluate(cell, split, rows.select(train), rows.select(~train))
        train = shorter_rows(rows)
        if not train.all() and not large:
            yield evaluate(cell, "longer", rows.select(train), rows.select(~train))
        if cell.operators == ("linear",) and cell.gpu == "a100-pcie-40gb":
            larger = read_table(folder / "neusight/linear_larger_shapes.csv")
            yield evaluate(cell, "larger", rows, larger)


def whole_board(folder: Path, only: str) -> Iterator[Score]:
    """One fit of all products and attention of a board."""
    cells = [
        replace(cell, name="whole b200-sxm") for cell in table_cells() if cell.gpu == "b200-sxm" and cell.name.endswith(("bf16", "decode"))
    ]
    if only in cells[0].name:
        rows = join_rows([read_table(folder / cell.file) for cell in cells])
        assert rows is not None
        train = seen_rows(rows)
        yield evaluate(cells[0], "unseen", rows.select(train), rows.select(~train))


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--only", default="", metavar="TEXT", help="Only cells whose name contains this.")
@click.option("--without", type=click.Choice(tuple(IDEAS)), help="Leave one idea out.")
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, only: str, without: str | None, as_json: bool) -> None:
    """Print the errors of every cell and split."""
    if without:
        patch(*IDEAS[without]).start()
    if published(data / "neusight"):
        show(
            (
                {**asdict(score), "target": TARGETS.get(score.cell, {}).get(score.split)}
                for score in chain(scores(data, only), whole_board(data, only))
            ),
            as_json,
        )


if __name__ == "__main__":
    main()
