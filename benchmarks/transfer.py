"""Errors on a GPU with few or no measured kernels: another GPU's fit is the prior.

    python benchmarks/transfer.py [--data ../shared/data] [--draws 3] [--json]

"chosen": 20 kernels as from `fit probes`; "random": 20 kernels drawn at random, mean over the draws.  Probes come from four
fifths of the rows, errors from the last fifth; a forecast is tested on all rows.  Errors are in percent, mean / median / 95th
percentile; [target].  "in 90 %": share of the tested rows inside their stated intervals.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import click
import numpy as np
import pandas as pd
from kernel_tables import Cell, cell_rows, errors, gemm_cells, random_rows
from showing import DATA, published, show

from estimator.bundle.content import Bundle, GroupCoefficients, HostCost, Provenance
from estimator.model.residuals import POWER_TIER
from estimator.vocabulary.quantities import NORMAL_90, BoolArray
from estimator.vocabulary.specifications import load_gpu
from fitter.bundle.calibration import calibrate
from fitter.bundle.data_facts import board_knowledge
from fitter.bundle.drafts import draft_from_rows
from fitter.latency.groups import fit_kernel_groups
from fitter.rows.columns import Dataset, KernelRows, Selection, join_rows
from fitter.rows.selection import read_selection
from fitter.transfer.probes import choose_probes
from fitter.validate.predictions import predict_kernel_rows

PROBES = 20

POWER_TARGETS: dict[str, float | None] = {"gb200": 3.5, "h200-sxm": None}
"""Target errors with the residual tier [%]."""

FP32 = ("a100-pcie-40gb", "v100-pcie-32gb")
FP32_TARGETS = {"linear": 12.0, "bmm": 12.0, "elementwise": 8.0}
FP32_KINDS = {"linear": ("linear",), "bmm": ("bmm",), "elementwise": ("add", "gelu")}

SIBLINGS = {
    "a100-sxm-80gb bf16": ("h200-sxm bf16", 11.0),
    "h100-sxm bf16": ("h200-sxm bf16", 7.3),
    "h200-sxm bf16": ("h100-sxm bf16", 6.4),
    "h200-sxm fp8": ("h200-sxm bf16", 5.5),
}
"""Cells of tensor-core products, each with its sibling and the target with 20 rows."""

FORECASTS = (("h100-sxm bf16", "h200-sxm bf16", 6.0), ("h200-sxm bf16", "h100-sxm bf16", None))
OTHERS = (
    ("a100-sxm-80gb bf16", "h100-sxm bf16", 8.5),
    ("a100-sxm-80gb bf16", "h200-sxm bf16", 8.5),
    ("h100-sxm bf16", "a100-sxm-80gb bf16", 8.5),
)
"""(source, target, target error): from the specification only; across architectures with probes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of rows outside the fit [%]; coverage: share of rows inside their stated 90 % interval, width: its mean half width [%];
    both nan without stated intervals.
    """

    case: str
    probes: str
    rows: int
    error: tuple[float, float, float]
    target: float | None
    coverage: float
    width: float
    seconds: float


def scored(case: str, probes: str, found: list[pd.DataFrame], target: float | None, seconds: float) -> Score:
    """The mean score over draws."""
    triples = [errors(one["predicted_latency"].to_numpy(), one["measured_latency"].to_numpy()) for one in found]
    rows = pd.concat(found).dropna(subset="std_latency")
    half = NORMAL_90 * rows["std_latency"]
    error = np.log(rows["measured_latency"] / rows["predicted_latency"])
    mean = np.mean(triples, axis=0)
    return Score(
        case=case,
        probes=probes,
        rows=len(found[0]),
        error=(float(mean[0]), float(mean[1]), float(mean[2])),
        target=target,
        coverage=float((np.abs(error) <= half).mean()),
        width=float(100 * half.mean()),
        seconds=seconds,
    )


def selection_of(rows: KernelRows) -> Selection:
    """Kernel rows as a separate dataset."""
    record = Dataset(name="table", sha256="0" * 64, kind="kernel table", rows=len(rows), used=len(rows), rejected={})
    return Selection(kernels=rows, workloads=None, rejected=(), startups=(), datasets=(record,), notes=())


def source_bundle(rows: KernelRows, gpu_name: str, *, refine: bool = False) -> Bundle:
    """A bundle of all measurements on one GPU; `refine` adds residual tiers and their stated errors."""
    gpu = load_gpu(gpu_name)
    fit = fit_kernel_groups(rows, gpu, seed=0, refine=refine)
    return Bundle(
        name=gpu_name,
        version="0.1.0",
        gpu=gpu,
        provenance=Provenance(created_utc="", wattprint_version="", commit="", seed=0),
        host=HostCost(launch_s=0.0, launch_ln_std=float("nan"), source="none"),
        groups={
            key: GroupCoefficients(coefficients=one.coefficients, ln_std=one.ln_std, identified=one.identified, rows=one.rows)
            for key, one in fit.groups.items()
        },
        clocks_mhz=(gpu.sm_clock_max_mhz, gpu.sm_clock_max_mhz),
        tile_predictors=fit.tile_predictors,
        residuals=fit.residuals,
        uncertainty={"latency": {"groups": dict(fit.group_std)}},
    )


def probed(
    case: str, rows: dict[str, KernelRows], prior: Bundle, gpu_name: str, targets: dict[str, float | None], draws: int
) -> Iterator[Score]:
    """Chosen and random probes among all kinds together; errors of each kind."""
    gpu = load_gpu(gpu_name)
    train = {kind: part.select(random_rows(part)) for kind, part in rows.items()}
    test = {kind: part.select(~random_rows(part)) for kind, part in rows.items()}
    pool = join_rows(list(train.values()))
    assert pool is not None
    for label in ("chosen", "random"):
        found: dict[str, list[pd.DataFrame]] = {}
        started = time.perf_counter()
        for draw in range(1 if label == "chosen" else draws):
            kept = probe_rows(pool, PROBES) if label == "chosen" else random_choice(pool, draw)
            bundle = calibrate(selection_of(pool.select(kept)), gpu, priors=[prior], seed=draw).bundle
            for kind, part in test.items():
                blind = replace(part, tile_m=part.tile_m * np.nan, tile_n=part.tile_n * np.nan, split_k=part.split_k * np.nan)
                found.setdefault(kind, []).append(predict_kernel_rows(bundle, blind))
        seconds = (time.perf_counter() - started) / (1 if label == "chosen" else draws)
        for kind, predictions in found.items():
            yield scored(f"{case} {kind}".strip(), f"{PROBES} {label}", predictions, targets[kind], seconds)


def probe_rows(rows: KernelRows, count: int) -> BoolArray:
    """Mask of the rows of the `count` most informative kernels, at all their measured clocks, shape (n,)."""
    _, first = np.unique(rows.operator_index, return_index=True)
    one_each = rows.select(first)
    chosen = choose_probes(one_each.row_operators(), count)
    return np.isin(rows.operator_index, one_each.operator_index[chosen])


def random_choice(rows: KernelRows, draw: int) -> BoolArray:
    """PROBES rows drawn at random."""
    kept = np.zeros(len(rows), dtype=np.bool_)
    kept[np.random.default_rng(draw).choice(len(rows), PROBES, replace=False)] = True
    return kept


def fp32_cases(folder: Path, draws: int) -> Iterator[Score]:
    """A100 to V100 and back: 20 probes of each kind of kernels, and 20 in total for the three kinds."""

    @cache
    def rows_of(gpu: str) -> dict[str, KernelRows]:
        return {kind: cell_rows(_fp32_cell(kind, gpu), folder) for kind in FP32_KINDS}

    for source, target in (FP32, FP32[::-1]):
        for kind, limit in FP32_TARGETS.items():
            prior = source_bundle(rows_of(source)[kind], source)
            yield from probed(f"{source} to {target}", {kind: rows_of(target)[kind]}, prior, target, {kind: limit}, draws)
        joined = join_rows(list(rows_of(source).values()))
        assert joined is not None
        prior = source_bundle(joined, source)
        yield from probed(f"{source} to {target}, in all", rows_of(target), prior, target, dict.fromkeys(FP32_TARGETS), draws)


def _fp32_cell(kind: str, gpu: str) -> Cell:
    file = "neusight/vector_train.csv" if kind == "elementwise" else f"neusight/{kind}_train.csv"
    return Cell(name=f"{kind} {gpu}", file=file, gpu=gpu, operators=FP32_KINDS[kind])


def tensor_cases(folder: Path, draws: int) -> Iterator[Score]:
    """Tensor-core products: siblings, forecasts by specification, other architectures."""
    cells = {cell.name.removeprefix("GEMM "): cell for cell in gemm_cells()}

    @cache
    def bundle_of(name: str, refine: bool = False) -> Bundle:
        return source_bundle(cell_rows(cells[name], folder), cells[name].gpu, refine=refine)

    for name, (sibling, target) in SIBLINGS.items():
        rows = {"": cell_rows(cells[name], folder)}
        yield from probed(f"GEMM {name} from {sibling}", rows, bundle_of(sibling), cells[name].gpu, {"": target}, draws)
    for source, name, limit in FORECASTS:
        started = time.perf_counter()
        bundle = bundle_of(source, True)
        found = predict_kernel_rows(bundle, cell_rows(cells[name], folder))
        yield scored(f"GEMM {source} to {name}", "specification", [found], limit, time.perf_counter() - started)
    for source, name, limit in OTHERS:
        rows = {"": cell_rows(cells[name], folder)}
        yield from probed(f"GEMM {source} to {name}", rows, bundle_of(source), cells[name].gpu, {"": limit}, draws)


def power_cases(folder: Path, draws: int) -> Iterator[Score]:
    """Power of trusted rows below the limit at predicted latency, by the equation alone and with the residual tier.

    These tables have no idle power; the fitted rows bound it.
    """
    everything = read_selection([folder / "aiconfigurator/power.csv"]).kernels
    assert everything is not None
    for gpu_name, target in POWER_TARGETS.items():
        gpu, own = load_gpu(gpu_name), np.array(everything.row_gpus) == gpu_name
        rows = everything.select(own & np.isfinite(everything.power_w) & ~everything.at_limit)
        kept = random_rows(rows)
        started = time.perf_counter()
        bundle = draft_from_rows(rows.select(kept), None, gpu, board_knowledge(selection_of(rows.select(kept)), gpu), 0).bundle
        seconds = time.perf_counter() - started
        bare = {group: {name: value for name, value in tier.items() if name != POWER_TIER} for group, tier in bundle.residuals.items()}
        for way, one, limit in (("equation", replace(bundle, residuals=bare), None), ("with tier", bundle, target)):
            found = predict_kernel_rows(one, rows.select(~kept)).dropna(subset=["measured_power", "predicted_power"])
            power = {f"{column}_latency": found[f"{column}_power"] for column in ("measured", "predicted", "std")}
            yield scored(f"power {gpu_name}, {way}", "-", [found.assign(**power)], limit, seconds)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--draws", type=click.IntRange(1), default=3, show_default=True, help="Random choices of probes.")
@click.option("--part", type=click.Choice(("fp32", "tensor", "power")), multiple=True, help="Only these cases; without it all.")
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, draws: int, part: tuple[str, ...], as_json: bool) -> None:
    """Print the errors of every case."""
    if published(data / "neusight"):
        cases = {"fp32": fp32_cases, "tensor": tensor_cases, "power": power_cases}
        chosen = (score for name, scores in cases.items() if name in part or not part for score in scores(data, draws))
        show(map(asdict, chosen), as_json)


if __name__ == "__main__":
    main()
