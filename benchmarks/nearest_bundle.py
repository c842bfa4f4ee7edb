"""Which bundle serves a GPU that has none: errors of forecasts from every other GPU, in the order in which `estimate --gpu` takes them.

    python benchmarks/nearest_bundle.py [--data ../shared/data] [--rows 900] [--json]

Kernel tables of six GPUs in bf16, a random part of each.  Mean absolute error of latency in percent, by specification alone: "chosen" from
the nearest bundle (`estimator.uncertainty.forecast.distance`), "best" and "mean" of all others, "own" of the GPU's own fit in-sample.

Then products in int8 and with narrow weights, with the shipped bundles: "chosen" from that of the nearest other board with such products,
"without" from the GPU's own less its coefficients for them.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import click
import numpy as np
import pandas as pd
from kernel_tables import read_table
from showing import DATA, published, show
from transfer import source_bundle

from estimator.bundle.content import Bundle
from estimator.bundle.files import bundle_heads, load_bundle
from estimator.model.coefficients import group_words
from estimator.uncertainty.forecast import distance
from estimator.uncertainty.nearest import nearest_bundle
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.specifications import load_gpu
from fitter.rows.columns import KernelRows
from fitter.validate.predictions import predict_kernel_rows

OLDER, NEWER = ("a100-sxm-80gb", "h100-sxm", "h200-sxm"), ("l40s", "b200-sxm", "gb200")
KINDS = {"linear": "gemm", "prefill": "attention", "decode": "attention"}
COLUMNS = (
    "family",
    "operator",
    "gpu",
    "precision",
    "batch",
    "m",
    "n",
    "k",
    "sequence",
    "heads",
    "kv_heads",
    "head_dim",
    "window",
    "latency_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of forecasts for one GPU [%]."""

    kind: str
    gpu: str
    nearest: str
    own: float
    chosen: float
    best: float
    mean: float


def read_rows(data: Path, kind: str, gpu: str, most: int) -> KernelRows:
    """A random part of the rows of a kind on a GPU."""
    family = KINDS[kind]
    file = f"aiconfigurator/{family}_latency.csv" if gpu in OLDER else f"aiconfigurator-2/{family}_{gpu}.csv.gz"
    table = pd.read_csv(data / file)
    return part_of(table[(table["gpu"] == gpu) & (table["operator"] == kind) & (table["precision"] == "bfloat16")], most)


def part_of(table: pd.DataFrame, most: int) -> KernelRows:
    """A random part of a table."""
    part = table.sample(min(most, len(table)), random_state=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.csv"
        part[[name for name in COLUMNS if name in part]].to_csv(path, index=False)
        return read_table(path)


def error(bundle: Bundle, rows: KernelRows) -> float:
    """Mean absolute error of latency [%]."""
    found = predict_kernel_rows(bundle, rows)
    return 100.0 * float(np.mean(np.abs(found["predicted_latency"] / found["measured_latency"] - 1.0)))


def scores(data: Path, most: int) -> Iterator[Score]:
    """Every kind on every GPU."""
    for kind in KINDS:
        rows = {gpu: read_rows(data, kind, gpu, most) for gpu in (*OLDER, *NEWER)}
        bundles = {gpu: source_bundle(own, gpu) for gpu, own in rows.items()}
        for gpu, own in rows.items():
            errors = {source: error(bundle, own) for source, bundle in bundles.items()}
            others = [source for source in rows if source != gpu]
            nearest = min(others, key=lambda source: distance(load_gpu(source), load_gpu(gpu)))
            found_elsewhere = [errors[source] for source in others]
            yield Score(
                kind=kind,
                gpu=gpu,
                nearest=nearest,
                own=errors[gpu],
                chosen=errors[nearest],
                best=min(found_elsewhere),
                mean=float(np.mean(found_elsewhere)),
            )


def narrow_scores(data: Path, most: int) -> Iterator[dict[str, object]]:
    """Products in int8 and with narrow weights on every GPU of the table."""
    heads = bundle_heads()
    for (gpu, precision), table in pd.read_csv(data / "aiconfigurator-2" / "gemm_int8_int4.csv.gz").groupby(["gpu", "precision"]):
        rows, own = part_of(table, most), load_bundle(gpu)
        others = {name: head for name, head in heads.items() if head.gpu.name != gpu}
        nearest = nearest_bundle(own.gpu, others, [precision])
        rest = {key: one for key, one in own.groups.items() if precision not in group_words(key)}
        without = replace(own, groups=FrozenMapping(rest), residuals=FrozenMapping({}))
        errors = {"own": error(own, rows), "chosen": error(load_bundle(nearest), rows), "without": error(without, rows)}
        yield {"kind": f"linear {precision}", "gpu": gpu, "nearest": nearest, **errors}


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--rows", "most", type=int, default=900, show_default=True, help="Kernels of each kind and GPU.")
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, most: int, as_json: bool) -> None:
    """Print the errors of every forecast."""
    if published(data / "aiconfigurator") and published(data / "aiconfigurator-2"):
        show(chain(map(asdict, scores(data, most)), narrow_scores(data, most)), as_json)


if __name__ == "__main__":
    main()
