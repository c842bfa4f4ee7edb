r"""Comparison of derived traffic with the hardware's counters: bytes at DRAM, L2 and shared memory of a hundred kernels.

    python -m scripts.traffic_check choose kernels.json
    ncu --clock-control none --cache-control all --profile-from-start off --csv --log-file counters.csv \
        --metrics "$(python -m scripts.traffic_check metrics)" python -m scripts.traffic_check launch kernels.json --gpu 0
    python -m scripts.traffic_check compare kernels.json counters.csv --bundle bundle.json -o traffic.json

`launch` profiles one cold launch of each kernel; a marker kernel before each marks its start in the table, because a library may
launch several kernels for one operator.  Only `launch` needs a board.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from collector.campaigns.files import load_campaign
from collector.errors import CollectorError
from estimator.bundle.content import Bundle
from estimator.bundle.files import load_bundle
from estimator.counts.activities import ProfiledKernel, read_ncu
from estimator.model.coefficients import CoefficientTable, group_key
from estimator.model.lowering import KnownTiles, lower
from estimator.model.phases import EVENTS
from estimator.model.tile_names import NO_TILE, KernelTile, tile_from_name
from estimator.vocabulary.errors import CountsError, EstimatorError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.whole_file import write_whole
from estimator.vocabulary.workload import Operator, make_operator
from microbench.shapes import KernelGroup, draw_operators

CAMPAIGN: Final = "real-card"
COUNTS: Final[dict[str, int]] = {"gemm": 60, "attention": 20, "softmax": 20}
"""Number of kernels of each family: a hundred in total."""

SEED: Final = 8
MARK: Final = "wattprint_mark_"
SIZES: Final = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)")
MARKED: Final = re.compile(rf"{MARK}(\d+)")
SECTOR_BYTES: Final = 32.0
LINE_BYTES: Final = 128.0
LEVELS: Final[dict[str, dict[str, float]]] = {
    "dram": {"dram__bytes_read.sum": 1.0, "dram__bytes_write.sum": 1.0},
    "l2": {"lts__t_sectors_srcunit_tex.sum": SECTOR_BYTES},
    "shared": {"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": LINE_BYTES},
}
"""Counters of each level and the bytes of one count (Nsight Compute documentation, metrics structure)."""

WANTED_CORRELATION: Final = 0.99
"""Correlation that EnergAIzer reports for its derived traffic on an A100."""

LEAST_BYTES: Final = 1.0
SPREAD: Final = (10.0, 50.0, 90.0)
"""Percentiles that describe the spread of the ratio."""


def chosen_kernels(seed: int = SEED) -> list[Operator]:
    """A hundred kernels by the shape rules of the campaign, the same for the same seed."""
    found: list[Operator] = []
    groups = load_campaign(CAMPAIGN).kernels
    for family, count in COUNTS.items():
        own = [group for group in groups if group.family == family]
        for place, group in enumerate(own):
            share = count // len(own) + (place < count % len(own))
            random = np.random.default_rng([seed, groups.index(group)])
            found += _drawn(group, share, random)
    return found


def _drawn(group: KernelGroup, count: int, random: np.random.Generator) -> list[Operator]:
    return draw_operators(replace(group, count=count), group.precisions[0], random)


def operators_document(operators: Sequence[Operator]) -> list[dict[str, Any]]:
    """Kernels as plain data."""
    return [
        {
            "family": operator.family,
            "operator": operator.operator,
            "precision": operator.precision,
            "cuda_cores": operator.cuda_cores,
            "shape": dict(operator.named_shape()),
        }
        for operator in operators
    ]


def operators_from(path: Path) -> list[Operator]:
    """Kernels from a file of `operators_document`.  Raises CountsError for other content."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return [
            make_operator(one["family"], one["operator"], one["precision"], cuda_cores=bool(one["cuda_cores"]), **one["shape"])
            for one in entries
        ]
    except (OSError, ValueError, TypeError, KeyError, EstimatorError, RecursionError) as error:
        raise CountsError(f"{path}: no list of kernels ({type(error).__name__}: {str(error)[:100]}); write one with `choose`") from error


def launch(operators: Sequence[Operator], gpu: str) -> int:
    """Launch each kernel once between markers, for a profile by ncu; kernels that cannot run here are named and skipped."""
    import cupy

    from collector.devices.board_runner import collector_errors, open_board_runner
    from collector.devices.nvml import open_board
    from collector.devices.polling import HostClock
    from collector.devices.tracer import NoTracer
    from collector.errors import RunnerError
    from estimator.vocabulary.specifications import load_gpu

    code = "\n".join(f'extern "C" __global__ void {MARK}{number}() {{}}' for number in range(len(operators)))
    with open_board(gpu) as board:
        identity = board.gpu.identity()
    tracer = NoTracer("Nsight Compute profiles")
    passed_over = 0
    with open_board_runner(identity.pci_address, load_gpu(identity.canonical_name), HostClock().now_ns, tracer=tracer) as runner:
        marks = cupy.RawModule(code=code)
        for number, operator in enumerate(operators):
            try:
                bound = runner.bound(runner.prepare(operator, "warm"))
            except RunnerError as error:
                click.echo(f"{number}: {error}", err=True)
                passed_over += 1
                continue
            with collector_errors():
                bound.launches[0]()
                cupy.cuda.runtime.deviceSynchronize()
                cupy.cuda.runtime.profilerStart()
                marks.get_function(f"{MARK}{number}")((1,), (1,), ())
                bound.launches[0]()
                cupy.cuda.runtime.deviceSynchronize()
                cupy.cuda.runtime.profilerStop()
    return passed_over


def counted_bytes(kernels: Sequence[ProfiledKernel], count: int) -> tuple[dict[str, np.ndarray[Any, Any]], list[ProfiledKernel | None]]:
    """Bytes by level of each of `count` operators, shape (count,), and the kernel of each that moved most.

    nan if there is no count, a counter is missing, or no kernel was launched.  Raises CountsError for a table without markers.
    """
    found = {level: np.full(count, np.nan) for level in LEVELS}
    largest: list[ProfiledKernel | None] = [None] * count
    most = np.zeros(count)
    current = None
    for kernel in kernels:
        if mark := MARKED.search(kernel.name):
            current = int(mark[1])
            if current >= count:
                raise CountsError(f"the table marks kernel {current}, the list has {count}; they do not belong together")
            continue
        if current is None:
            continue
        for level, counters in LEVELS.items():
            value = sum(kernel.metrics.get(counter, math.nan) * each for counter, each in counters.items())
            before = found[level][current]
            found[level][current] = value if math.isnan(before) else before + value
        weight = sum(value for value in kernel.metrics.values() if math.isfinite(value))
        if weight >= most[current]:
            most[current], largest[current] = weight, kernel
    if current is None:
        raise CountsError(f"no kernel of the table is called {MARK}N; profile `launch`")
    return found, largest


def derived_bytes(
    operators: Sequence[Operator], gpu: GpuSpec, bundle: Bundle, ran: Sequence[ProfiledKernel | None]
) -> dict[str, np.ndarray[Any, Any]]:
    """Bytes by level that the estimator derives for cold operands, shape (n,); uses tiles from the names of executed kernels, if any."""
    tiles = [_tile(operator, kernel) for operator, kernel in zip(operators, ran, strict=True)]
    known = KnownTiles(
        tile_m=np.array([tile.tile_m for tile in tiles]),
        tile_n=np.array([tile.tile_n for tile in tiles]),
        split=np.array([tile.split_k for tile in tiles]),
    )
    groups = {name: group.coefficients for name, group in bundle.groups.items()}
    coefficients, _ = CoefficientTable(groups).rows(map(group_key, operators))
    events = lower(operators, gpu, coefficients, known).events
    return {level: events[:, EVENTS.index(level)] for level in LEVELS}


def _tile(operator: Operator, kernel: ProfiledKernel | None) -> KernelTile:
    """The tile in the name of the kernel that ran, if any."""
    if kernel is None or operator.family != "gemm":
        return NO_TILE
    shape = operator.named_shape()
    sizes = SIZES.search(kernel.grid)
    grid = (float(sizes[1]), float(sizes[2]), float(sizes[3])) if sizes else (math.nan, math.nan, math.nan)
    return tile_from_name(kernel.name, shape["batch"], shape["m"], shape["n"], grid)


def comparison(
    operators: Sequence[Operator], counted: dict[str, np.ndarray[Any, Any]], derived: dict[str, np.ndarray[Any, Any]]
) -> dict[str, Any]:
    """Kernels, correlation (plain and of logarithms) and percentiles of derived over counted bytes, by level and family."""
    document: dict[str, Any] = {}
    families = np.array([operator.family for operator in operators])
    for level in LEVELS:
        usable = np.isfinite(counted[level]) & (counted[level] >= LEAST_BYTES) & (derived[level] >= LEAST_BYTES)
        rows = {"all": usable} | {family: usable & (families == family) for family in COUNTS}
        document[level] = {name: _agreement(derived[level][own], counted[level][own]) for name, own in rows.items()}
    return document


def _agreement(derived: np.ndarray[Any, Any], counted: np.ndarray[Any, Any]) -> dict[str, Any]:
    if len(derived) < 3 or np.ptp(derived) == 0 or np.ptp(counted) == 0:
        return {"kernels": len(derived), "correlation": None, "log_correlation": None, "ratio": None}
    low, middle, high = np.percentile(derived / counted, SPREAD)
    return {
        "kernels": len(derived),
        "correlation": float(np.corrcoef(derived, counted)[0, 1]),
        "log_correlation": float(np.corrcoef(np.log(derived), np.log(counted))[0, 1]),
        "ratio": {"p10": float(low), "median": float(middle), "p90": float(high)},
    }


def lines_of(document: dict[str, Any]) -> list[str]:
    """The comparison for people."""
    lines = [f"{'level':8} {'family':10} {'kernels':>7} {'corr':>7} {'log corr':>8}   derived/counted p10 median p90"]
    for level, families in document.items():
        for family, one in families.items():
            if one["correlation"] is None:
                lines.append(f"{level:8} {family:10} {one['kernels']:7d}   too few to compare")
                continue
            ratio = one["ratio"]
            spread = f"{ratio['p10']:.3f} {ratio['median']:.3f} {ratio['p90']:.3f}"
            mark = "" if family != "all" or one["correlation"] >= WANTED_CORRELATION else f"  below {WANTED_CORRELATION:g}"
            lines.append(
                f"{level:8} {family:10} {one['kernels']:7d} {one['correlation']:7.4f} {one['log_correlation']:8.4f}   {spread}{mark}"
            )
    return lines


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Derived traffic against the hardware's counters.")
    commands = parser.add_subparsers(dest="command", required=True)
    choose = commands.add_parser("choose", help="write the list of kernels")
    choose.add_argument("kernels", type=Path)
    choose.add_argument("--seed", type=int, default=SEED)
    commands.add_parser("metrics", help="print the counters for ncu --metrics")
    launched = commands.add_parser("launch", help="launch each kernel once, under ncu")
    launched.add_argument("kernels", type=Path)
    launched.add_argument("--gpu", default="0")
    compare = commands.add_parser("compare", help="hold the estimator's bytes against the counters")
    compare.add_argument("kernels", type=Path)
    compare.add_argument("counters", type=Path)
    compare.add_argument("--bundle", required=True)
    compare.add_argument("-o", "--out", type=Path, required=True)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 if done, 1 if it failed, 3 with skipped kernels or a correlation below the target."""
    given = _arguments().parse_args(words)
    try:
        match given.command:
            case "choose":
                write_whole(given.kernels, json.dumps(operators_document(chosen_kernels(given.seed)), indent=0).encode())
            case "metrics":
                click.echo(",".join(counter for counters in LEVELS.values() for counter in counters))
            case "launch":
                return 3 if launch(operators_from(given.kernels), given.gpu) else 0
            case _:
                return _compared(given.kernels, given.counters, given.bundle, given.out)
    except (CollectorError, EstimatorError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        return 1
    return 0


def _compared(kernels: Path, counters: Path, bundle_name: str, out: Path) -> int:
    operators, bundle = operators_from(kernels), load_bundle(bundle_name)
    counted, ran = counted_bytes(read_ncu(counters.read_bytes(), counters), len(operators))
    document = comparison(operators, counted, derived_bytes(operators, bundle.gpu, bundle, ran))
    write_whole(out, json.dumps(document, indent=1).encode())
    click.echo("\n".join(lines_of(document)))
    every = [families["all"]["correlation"] for families in document.values()]
    return 0 if all(one is not None and one >= WANTED_CORRELATION for one in every) else 3


if __name__ == "__main__":
    sys.exit(main())
