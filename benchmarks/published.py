"""Shipped bundles beside figures that others have published: single kernels, and language models in static batches.

    python benchmarks/published.py [--only kernels|served] [--json]

benchmarks/published holds the figures with their conditions and sources, as kernels.csv and served.csv.  Their column `assumed` names what
the source leaves open.
A line for every group, the last one for a whole table: rows; geometric mean of our value over the published one, of times (rates are
inverted) or of power; mean absolute error and share inside the stated 90 % interval [%]; the row that is furthest off.

Kernels: no host, the interval of another laboratory, the GPU's usual clock.  "load": burst: all launches together last less than 0.1 s, and
no power limit holds; else it does.  A unit "W@MHz" is a power at a clock.  "… backward": the gradients alone.
Served: engines without a server, so all host times are 0; the clock of `estimate llm`.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from showing import show

from estimator import estimate
from estimator.engine.board import open_board
from estimator.serving.answers import Serving, serve_many
from estimator.serving.engines import HostTime, load_engine
from estimator.tracing.products import BACKWARD_PRODUCTS
from estimator.uncertainty.nearest import bundle_for
from estimator.vocabulary.quantities import NORMAL_90
from estimator.vocabulary.workload import Workload, make_operator

FOLDER = Path(__file__).resolve().parent / "published"

Row = Mapping[str, str]

MEMORY_SHARE = 0.95
"""Share of a board's memory that an engine without a server takes (assumed)."""


class Compared(NamedTuple):
    """A row of a group: our value over the published one, and whether that lies inside our 90 % interval."""

    group: str
    what: str
    ratio: float
    inside: bool


def rows_of(table: str) -> list[Row]:
    """The rows of a table by its name."""
    with (FOLDER / f"{table}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def shape_of(row: Row) -> dict[str, float]:
    """The fields of a kernel by name."""
    return {name: float(value) for name, value in (word.split("=") for word in row["shape"].split())}


def kernel_of(row: Row) -> Workload:
    """The workload of a kernel."""
    library = {"library": row["library"]} if row["library"] else {}
    operator = make_operator(row["family"], row["operator"], row["precision"], **shape_of(row), **library)
    passes = BACKWARD_PRODUCTS if row["kernel"].endswith("backward") else 1.0
    return Workload(name=row["kernel"], model_family=row["family"], operators=(operator,), counts=(passes,))


def seconds_of(row: Row) -> float:
    """The published time of a kernel [s].  TFLOP/s count the half of a causal square; busGB/s of all_reduce are as nccl-tests has them."""
    value, shape = float(row["value"]), shape_of(row)
    if row["unit"] in ("ms", "us"):
        return value * {"ms": 1e-3, "us": 1e-6}[row["unit"]]
    if row["unit"] == "busGB/s":
        return 2.0 * (1.0 - 1.0 / shape["num_gpus"]) * shape["message_bytes"] / (1e9 * value)
    if row["family"] == "gemm":
        return 2.0 * shape["batch"] * shape["m"] * shape["n"] * shape["k"] / (1e12 * value)
    pairs = shape["queries"] * shape["context"] / (1.0 + shape["causal"])
    return 4.0 * shape["batch"] * shape["heads"] * shape["head_dim"] * pairs / (1e12 * value)


near = cache(bundle_for)
"""The nearest bundle of a GPU, and the GPU, None for the bundle's own."""


def kernels() -> Iterator[Compared]:
    """Single kernels."""
    for row in rows_of("kernels"):
        bundle, other = near(row["gpu"], (row["precision"],))
        gpu = other or bundle.gpu
        if row["load"] == "burst":
            gpu = replace(gpu, power_limit_w=10.0 * gpu.power_limit_w)
        clock = row["unit"].partition("@")[2]
        if clock:
            gpu = replace(gpu, power_limit_w=10.0 * gpu.power_limit_w)
        found = estimate(kernel_of(row), bundle, gpu=gpu, host_launch_s=0.0, sm_clock_mhz=float(clock) if clock else None)[0]
        if clock:
            ratio, deviation = found.power_w / float(row["value"]), found.power_w_std / found.power_w
        else:
            ratio, deviation = found.latency_s / seconds_of(row), found.latency_s_std_elsewhere / found.latency_s
        group = f"{row['kernel']} {row['operator']} {row['gpu']}{' power' if clock else ''}"
        yield Compared(group, f"{row['precision']} {row['shape']}", ratio, abs(math.log(ratio)) < NORMAL_90 * deviation)


def serving_of(row: Row) -> Serving:
    """The load of a row, under an engine without a server: the kernels of TensorRT-LLM or, for all others, of vLLM; behind a server the
    engine itself.  A batch of "8/s" is a rate.
    """
    behind = row["assumed"].startswith("behind a server")
    name = row["engine"].rpartition("-")[0] if behind else ""
    shipped = load_engine(name or ("tensorrt-llm-1.0" if row["engine"].startswith("tensorrt") else "vllm-0.12"))
    idle = HostTime(step_s=0.0, sequence_s=0.0, request_s=0.0, spread=0.0)
    load, _, rate = row["batch"].partition("/")
    return Serving(
        model=row["model"],
        prompt=int(row["prompt"]),
        output=int(row["output"]),
        **({"rate": float(load)} if rate else {"batch": int(load)}),
        tensor_parallel=int(row["tensor_parallel"]),
        weights=row["weights"] or None,
        kv=row["kv"] or None,
        engine=shipped if behind else replace(shipped, host=idle, memory_share=MEMORY_SHARE),
    )


def served() -> Iterator[Compared]:
    """Language models in static batches, or at full load."""
    for row in rows_of("served"):
        serving = serving_of(row)
        bundle, gpu = near(row["gpu"], serving.formats, served=True)
        board = open_board(bundle, gpu=gpu, power_cap_w=float(row["power_cap_w"]) if row["power_cap_w"] else None)
        (found,) = serve_many(serving, board, [serving.batch] if serving.batch else [])
        ours, low, high = (getattr(found, f"{row['unit']}{end}") for end in ("", "_low", "_high"))
        value = float(row["value"])
        group = f"{row['engine']} {row['gpu']} {row['weights'] or '16 bits'}{' power' if row['unit'] == 'power_w' else ''}"
        what = f"{row['model']} {row['prompt']} + {row['output']} x {row['batch']}, {row['tensor_parallel']} GPUs, {row['unit']}"
        yield Compared(group, what, value / ours if row["unit"] == "tokens_per_s" else ours / value, low <= value <= high)


def scored(group: str, found: list[Compared]) -> dict[str, object]:
    """The line of a group."""
    ratios = np.array([one.ratio for one in found])
    worst = found[int(np.argmax(np.abs(np.log(ratios))))]
    return {
        "group": group,
        "rows": len(found),
        "mean": float(np.exp(np.mean(np.log(ratios)))),
        "error": 100.0 * float(np.mean(np.abs(ratios - 1.0))),
        "inside": 100.0 * float(np.mean([one.inside for one in found])),
        "worst": f"{worst.ratio:.2f} {worst.what}",
    }


TABLES = {"kernels": kernels, "served": served}


def lines(names: tuple[str, ...]) -> Iterator[dict[str, object]]:
    """The lines of tables."""
    for name in names:
        groups: dict[str, list[Compared]] = defaultdict(list)
        for one in TABLES[name]():
            groups[one.group].append(one)
        yield from (scored(group, found) for group, found in groups.items())
        yield scored(f"all {name}", [one for found in groups.values() for one in found])


@click.command()
@click.option("--only", type=click.Choice(tuple(TABLES)))
@click.option("--json", "as_json", is_flag=True)
def main(only: str | None, as_json: bool) -> None:
    """Print a line for every group."""
    show(lines((only,) if only else tuple(TABLES)), as_json)


if __name__ == "__main__":
    main()
