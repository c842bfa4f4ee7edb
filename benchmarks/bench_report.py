"""How long the report of a fit takes and how large its page is, for as many rows as one asks for.

    python benchmarks/bench_report.py [--rows 1000000] [--json]

Rows are a few hundred simulated kernels over and over, with noise: what the page holds depends on kinds of kernels, not on rows.
Fits without whole families and clocks, which a report includes, are timed apart: they take a choice of rows.
The time stands beside that of sorting fifty columns of as many numbers in the same run, and beside targets of 10 s and 6 MB.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fitter.bundle.export import board_knowledge
from fitter.report.left_out import leave_out
from fitter.report.page import report_html
from fitter.validate.predictions import predict_kernel_rows, row_origins
from tests.fitter.measured import kernel_rows, planted_bundle, selection_of, various_operators

KERNELS = 300
NOISE = 0.05
COLUMNS = 50
TARGET_S = 10.0
TARGET_BYTES = 6_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One report: seconds, those of its fits without families and clocks, page size, and the reference's seconds."""

    rows: int
    report_s: float
    left_out_s: float
    reference_s: float
    page_bytes: int

    @property
    def ratio(self) -> float:
        """Report over reference."""
        return self.report_s / self.reference_s


def measure(rows: int, seed: int = 0) -> Outcome:
    """Make a page and sort columns."""
    rng = np.random.default_rng(seed)
    bundle = planted_bundle()
    few = kernel_rows(bundle, various_operators(KERNELS))
    index = rng.integers(0, KERNELS, rows)
    table = replace(
        few.select(index),
        row=np.arange(1, rows + 1),
        temperature_c=rng.uniform(40.0, 80.0, rows),
        started_s=1.7e9 + 0.1 * np.arange(rows),
        sm_clock_asked_mhz=rng.choice([510.0, 900.0, 1410.0], rows),
    )
    prediction = predict_kernel_rows(bundle, few).select(index)
    prediction = replace(
        prediction,
        measured_s=prediction.measured_s * np.exp(NOISE * rng.standard_normal(rows)),
        measured_w=prediction.measured_w * np.exp(NOISE * rng.standard_normal(rows)),
        latency_ln_std=np.full(rows, NOISE),
        power_ln_std=np.full(rows, NOISE),
        origins=row_origins(table),
    )
    selection = selection_of(table)
    began = time.perf_counter()
    left_out = leave_out(selection, bundle.gpu, board_knowledge(selection, bundle.gpu).tables)
    left_out_s = time.perf_counter() - began
    began = time.perf_counter()
    page = report_html(bundle, selection, {"kernels": prediction}, left_out)
    report_s = time.perf_counter() - began
    columns = rng.random((COLUMNS, rows))
    began = time.perf_counter()
    np.sort(columns, axis=1)
    reference_s = time.perf_counter() - began
    return Outcome(rows=rows, report_s=report_s, left_out_s=left_out_s, reference_s=reference_s, page_bytes=len(page.encode("utf-8")))


@click.command()
@click.option("--rows", type=click.IntRange(1_000), default=1_000_000, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(rows: int, as_json: bool) -> None:
    """Time a report of so many simulated rows."""
    found = measure(rows)
    if as_json:
        click.echo(json.dumps({**asdict(found), "ratio": found.ratio}))
        return
    click.echo(
        f"report of {found.rows:,} simulated rows  {found.report_s:.2f} s (target {TARGET_S:g}) and {found.left_out_s:.2f} s of fits, "
        f"{found.ratio:.2f} × sorting {COLUMNS} such columns ({found.reference_s:.2f} s); "
        f"page {found.page_bytes / 1e6:.2f} MB (target {TARGET_BYTES / 1e6:g})"
    )


if __name__ == "__main__":
    main()
