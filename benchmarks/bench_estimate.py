"""How long an estimate takes: in process, over many clocks, and as a command from a cold start.

    python benchmarks/bench_estimate.py [--bundle NAME|FILE] [--workload FILE] [--json]

Medians over many repeats.  A time says little about another machine, so each stands beside one of the same run: parsing
the same file as JSON, or starting Python with numpy and click.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from estimator import estimate, load_bundle, read_workload
from estimator.bundles.files import bundle_names

LISTED_OPERATORS = 960
CLOCK_MHZ = 900.0
CLOCKS_MHZ = tuple(210.0 + 15.0 * step for step in range(81))  # every clock of an A100

ONE_CLOCK_TARGET_S = 5e-3
ALL_CLOCKS_TARGET_S = 20e-3
COLD_START_TARGET_S = 0.35

IN_PROCESS_REPEATS = 60
COMMAND_REPEATS = 9

# A decoder layer as an EnergAIzer operator list has it: 1.5 billion parameters, 512 tokens, grouped-query attention.
TOKENS, WIDTH, FEED_FORWARD, HEADS, KV_WIDTH, HEAD_DIM = 512, 1536, 8960, 12, 256, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One median [s] beside its target and a reference of the same run."""

    what: str
    median_s: float
    target_s: float | None
    reference: str
    reference_s: float


def _product(batch: int, m: int, n: int, k: int) -> list[object]:
    shape = {"batch": batch, "dimM": m, "dimN": n, "dimK": k}
    return [shape | {"precM": "bf16", "precA": "bf16", "useTensorCore": True}, ["gemm", "tc", "bf16_bf16"]]


def _elementwise(operator: str, elements: int, precision: str = "bf16") -> list[object]:
    return [{"dim": elements, "op": operator, "prec": precision}, ["elementwise"]]


def _norm() -> list[list[object]]:
    elements = TOKENS * WIDTH
    return [
        _elementwise("typecast_to_fp32", elements),
        _elementwise("unspecified_scalar", elements, "fp32"),
        _elementwise("scalar_add", TOKENS, "fp32"),
        _elementwise("pointwise_mul", elements, "fp32"),
        _elementwise("typecast_to_bf16", elements, "fp32"),
        _elementwise("pointwise_mul", elements),
    ]


def _rotary(elements: int) -> list[list[object]]:
    return [_elementwise(name, elements) for name in ("pointwise_mul", "scalar_mul", "pointwise_mul", "pointwise_add")]


def decoder_layer() -> list[list[object]]:
    """The operators of one layer in execution order."""
    scores, hidden, wide = HEADS * TOKENS * TOKENS, TOKENS * WIDTH, TOKENS * FEED_FORWARD
    attention = [
        _product(1, WIDTH, TOKENS, WIDTH),
        _product(1, KV_WIDTH, TOKENS, WIDTH),
        _product(1, KV_WIDTH, TOKENS, WIDTH),
        *_rotary(hidden),
        *_rotary(TOKENS * KV_WIDTH),
        _product(HEADS, TOKENS, TOKENS, HEAD_DIM),
        _elementwise("scalar_mul", scores),
        _elementwise("pointwise_add", scores),
        _elementwise("typecast_to_fp32", scores),
        [{"batch": HEADS * TOKENS, "dim": TOKENS, "prec": "fp32"}, ["softmax", "fp32"]],
        _elementwise("typecast_to_bf16", scores, "fp32"),
        _product(HEADS, TOKENS, HEAD_DIM, TOKENS),
        _product(1, WIDTH, TOKENS, WIDTH),
        _elementwise("pointwise_add", hidden),
    ]
    feed_forward = [
        _product(1, FEED_FORWARD, TOKENS, WIDTH),
        _elementwise("silu", wide),
        _product(1, FEED_FORWARD, TOKENS, WIDTH),
        _elementwise("pointwise_mul", wide),
        _product(1, WIDTH, TOKENS, FEED_FORWARD),
        _elementwise("pointwise_add", hidden),
    ]
    return [*_norm(), *attention, *_norm(), *feed_forward]


def write_long_workload(path: Path) -> Path:
    """A list of 960 operators: the layer over and over."""
    layer = decoder_layer()
    operators = [layer[i % len(layer)] for i in range(LISTED_OPERATORS)]
    path.write_text(json.dumps(operators), encoding="utf-8")
    return path


def median_s(work: Callable[[], object], repeats: int) -> float:
    """Median duration of a call [s], after one that is not counted."""
    work()
    durations = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def run_python(*arguments: str) -> None:
    """A Python process from start to end; its output is dropped, a failure is not."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise click.ClickException(f"{' '.join(arguments)}: {done.stderr.strip()}")


def in_process_timings(workload: Path, bundle_name: str) -> list[Timing]:
    """Timings inside a running program."""
    bundle = load_bundle(bundle_name)
    cases: tuple[tuple[str, float | None, Callable[[], object]], ...] = (
        ("file to result, 1 clock", ONE_CLOCK_TARGET_S, lambda: estimate(read_workload(workload), bundle, sm_clock_mhz=CLOCK_MHZ)),
        ("file to result, 81 clocks", ALL_CLOCKS_TARGET_S, lambda: estimate(read_workload(workload), bundle, sm_clock_mhz=CLOCKS_MHZ)),
        ("bundle from its file", None, lambda: load_bundle(bundle_name)),
    )
    parse_s = median_s(lambda: json.loads(workload.read_bytes()), IN_PROCESS_REPEATS)
    return [
        Timing(
            what=what,
            median_s=median_s(work, IN_PROCESS_REPEATS),
            target_s=target_s,
            reference="parsing the workload as JSON",
            reference_s=parse_s,
        )
        for what, target_s, work in cases
    ]


def cold_start_timing(workload: Path, bundle_name: str) -> Timing:
    """The command, from a process that does not exist yet to its end."""
    words = [str(workload), "--bundle", bundle_name, "--freq", f"{CLOCK_MHZ:.0f}"]
    return Timing(
        what="command, cold start",
        median_s=median_s(
            lambda: run_python("-c", "import sys; from estimator.cli import main; sys.exit(main())", *words), COMMAND_REPEATS
        ),
        target_s=COLD_START_TARGET_S,
        reference="python -c 'import numpy, click'",
        reference_s=median_s(lambda: run_python("-c", "import numpy, click"), COMMAND_REPEATS),
    )


@click.command()
@click.option("--bundle", "bundle_name", metavar="NAME|FILE", help="Bundle to use; without it the first installed one.")
@click.option("--workload", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Workload instead of 960 operators.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def main(bundle_name: str | None, workload: Path | None, as_json: bool) -> None:
    """Time `estimate` against what it cannot do without."""
    name = bundle_name or next(iter(bundle_names()), None)
    if name is None:
        raise click.ClickException("no bundle is installed; name one with --bundle")
    with tempfile.TemporaryDirectory() as folder:
        path = workload or write_long_workload(Path(folder) / "decoder.json")
        rows = [*in_process_timings(path, name), cold_start_timing(path, name)]
    if as_json:
        click.echo(json.dumps([asdict(row) | {"ratio": row.median_s / row.reference_s} for row in rows], indent=2))
        return
    click.echo(f"workload {path.name}, bundle {name}; medians of {IN_PROCESS_REPEATS} calls, {COMMAND_REPEATS} processes")
    for row in rows:
        target = f"(target {row.target_s * 1e3:5.1f})" if row.target_s is not None else ""
        ratio = row.median_s / row.reference_s
        click.echo(
            f"{row.what:27s}{row.median_s * 1e3:9.2f} ms {target:17s}{ratio:6.1f} × {row.reference} ({row.reference_s * 1e3:.2f} ms)"
        )


if __name__ == "__main__":
    main()
