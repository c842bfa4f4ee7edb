"""Agreement of latency, power and energy of the same kernels measured twice.

    python -m scripts.anchor_check anchors-1.parquet anchors-2.parquet -o anchors.json

Both datasets are from one campaign and one seed, from different hours or machines (`collect --campaign real-card-anchors --seed 1`).
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from collector.dataset.reader import read_kernel_dataset
from collector.dataset.schema import SHAPE_COLUMNS
from collector.errors import CollectorError
from estimator.vocabulary.whole_file import write_whole

FIGURES: Final[dict[str, str]] = {"latency": "latency_s", "power": "power_w", "energy": "energy_j"}
KERNEL: Final = ("family", "operator", "precision", "cuda_cores", "transpose", "l2_state", "sm_clock_mhz", *SHAPE_COLUMNS)
"""Columns that identify the kernel of a row."""

WANTED: Final = 0.015
"""Largest mean difference of energy between two measurements [1]."""

FEWEST: Final = 3
"""Least number of kernels for a comparison."""


class AnchorError(Exception):
    """Two datasets that cannot be compared; the message is one line."""


def agreement(first: Path, second: Path) -> dict[str, Any]:
    """Differences of the kernels in both datasets, by figure: mean, median, largest, and the bias of the second.

    The last measurement of a repeated kernel counts.  Differences are logarithms of ratios of two runs of a kernel.  Raises AnchorError
    if fewer than 3 kernels are in both, DatasetError for a file that is no dataset.
    """
    before, after = _last_rows(first), _last_rows(second)
    shared = [kernel for kernel in before if kernel in after]
    if len(shared) < FEWEST:
        raise AnchorError(f"{first} and {second} share {len(shared)} kernels, {FEWEST} are the least; measure both with the same campaign")
    found: dict[str, Any] = {"kernels": len(shared), "wanted": WANTED}
    for figure, column in FIGURES.items():
        pairs = [(before[kernel][column], after[kernel][column]) for kernel in shared]
        known = np.array([math.log(new / old) for old, new in pairs if old and new and old > 0 and new > 0])
        if not len(known):
            raise AnchorError(f"no kernel of {first} and {second} has {column} in both; measure them with power")
        size = np.abs(known)
        found[figure] = {
            "n": len(known),
            "mean": float(size.mean()),
            "median": float(np.median(size)),
            "largest": float(size.max()),
            "bias": float(known.mean()),
        }
    return found


def _last_rows(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Figures of the last row by kernel."""
    table = read_kernel_dataset(path).table
    columns = {name: table.column(name).to_pylist() for name in (*KERNEL, "trial", *FIGURES.values())}
    order = sorted(range(table.num_rows), key=lambda row: int(columns["trial"][row]))
    return {tuple(columns[name][row] for name in KERNEL): {name: columns[name][row] for name in FIGURES.values()} for row in order}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two datasets; returns 0 if energies agree within WANTED, 3 if they do not, 1 if they cannot be compared."""
    parser = argparse.ArgumentParser(prog="anchor_check", description="How well do two measurements of the same kernels agree?")
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    given = parser.parse_args(arguments)
    try:
        found = agreement(given.first, given.second)
        if given.out is not None:
            write_whole(given.out, (json.dumps(found, indent=2) + "\n").encode())
    except (AnchorError, CollectorError, OSError) as error:
        click.echo(f"anchor_check: {error}", err=True)
        return 1
    for figure in FIGURES:
        one = found[figure]
        click.echo(
            f"{figure:8} of {one['n']} kernels measured twice: mean difference {one['mean']:.2%}, median {one['median']:.2%}, "
            f"largest {one['largest']:.2%}, bias {one['bias']:+.2%}"
        )
    met = found["energy"]["mean"] <= WANTED
    click.echo(f"wanted: mean difference of energy at most {WANTED:.1%}: {'met' if met else 'missed'}")
    return 0 if met else 3


if __name__ == "__main__":
    sys.exit(main())
