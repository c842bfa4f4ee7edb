"""How long an estimate takes: in process, over many clocks, as a command from a cold start, and in a sweep.

    python benchmarks/bench_estimate.py [--bundle NAME|FILE] [--workload FILE] [--points N] [--json]

Medians over many repeats, of the time that passes and of processor time: on a machine with other work the second is what it would take
on a free core.  A time says little about another machine, so each stands beside one of the same run, taken in turn with it: parsing
the same file as JSON, or starting Python with numpy and click.  Modules are compiled once before, as an installation does.  The sweep
goes over sequence lengths and all clocks on one thread; its rates are per second of processor time.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from estimator import Sizes, estimate, load_bundle, read_workload, sweep_chunks, variants
from estimator.bundle.files import bundle_names

LISTED_OPERATORS = 960
CLOCK_MHZ = 900.0
CLOCKS_MHZ = tuple(210.0 + 15.0 * step for step in range(81))  # every clock of an A100

ONE_CLOCK_TARGET_S = 5e-3
ALL_CLOCKS_TARGET_S = 20e-3
COLD_START_TARGET_S = 0.35

SWEEP_LAYERS = 4
SWEEP_TARGET = 2e6  # kernel predictions a second

IN_PROCESS_REPEATS = 60
COMMAND_REPEATS = 15

# A decoder layer as an EnergAIzer operator list has it: 1.5 billion parameters, 512 tokens, grouped-query attention.
TOKENS, WIDTH, FEED_FORWARD, HEADS, KV_WIDTH, HEAD_DIM = 512, 1536, 8960, 12, 256, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Median times [s] beside the target and those of a reference of the same run; processor_…: processor time, of children too."""

    what: str
    median_s: float
    processor_s: float
    target_s: float | None
    reference: str
    reference_s: float
    processor_reference_s: float


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


def timing(
    what: str, target_s: float | None, work: Callable[[], object], reference: str, other: Callable[[], object], repeats: int
) -> Timing:
    """Durations of a call and of a reference, in turn, after one of each that is not counted."""
    passed: tuple[list[float], list[float]] = ([], [])
    used: tuple[list[float], list[float]] = ([], [])
    for call in (work, other):
        call()
    for _ in range(repeats):
        for i, call in enumerate((work, other)):
            start, processor_start = time.perf_counter(), processor_s()
            call()
            passed[i].append(time.perf_counter() - start)
            used[i].append(processor_s() - processor_start)
    return Timing(
        what=what,
        median_s=statistics.median(passed[0]),
        processor_s=statistics.median(used[0]),
        target_s=target_s,
        reference=reference,
        reference_s=statistics.median(passed[1]),
        processor_reference_s=statistics.median(used[1]),
    )


def processor_s() -> float:
    """Processor time so far of this process and of its children that have ended [s]."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def compiled_modules(folder: Path) -> dict[str, str]:
    """An environment whose Python processes keep compiled modules in a folder, so that all but the first find them there."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(folder), "OMP_NUM_THREADS": "1"}


def run_python(environment: dict[str, str], *arguments: str) -> None:
    """A Python process from start to end; its output is dropped, a failure is not."""
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
    content = workload.read_bytes()
    return [
        timing(what, target_s, work, "parsing the workload as JSON", lambda: json.loads(content), IN_PROCESS_REPEATS)
        for what, target_s, work in cases
    ]


def cold_start_timing(workload: Path, bundle_name: str, folder: Path) -> Timing:
    """The command, from a process that does not exist yet to its end; compiled modules are kept in `folder`."""
    words = [str(workload), "--bundle", bundle_name, "--freq", f"{CLOCK_MHZ:.0f}"]
    environment = compiled_modules(folder)
    return timing(
        "command, cold start",
        COLD_START_TARGET_S,
        lambda: run_python(environment, "-c", "import sys; from estimator.cli import main; sys.exit(main())", *words),
        "python -c 'import numpy, click'",
        lambda: run_python(environment, "-c", "import numpy, click"),
        COMMAND_REPEATS,
    )


def sweep_rates(folder: Path, bundle_name: str, points: int) -> dict[str, float]:
    """A sweep in pieces: points and kernel predictions a second of processor time, and the memory of the process [MB]."""
    path = folder / "decoder_b1_s512.json"
    path.write_text(json.dumps(decoder_layer() * SWEEP_LAYERS), encoding="utf-8")
    bundle = load_bundle(bundle_name)
    clocks = bundle.gpu.clocks_mhz()
    lengths = range(96, 96 + -(-points // len(clocks)))  # every length has shapes of its own, so that nothing can be reused
    chosen = variants(read_workload(path, completion=False), at=Sizes(batch=1, sequence=512), sequence=lengths)
    begin = time.process_time()
    done = sum(len(piece) for piece in sweep_chunks(chosen, bundle, sm_clock_mhz=clocks))
    seconds = time.process_time() - begin
    kernels = sum(len(variant.workload.operators) for variant in chosen) * len(clocks)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"points": done, "points_per_s": done / seconds, "kernels_per_s": kernels / seconds, "memory_mb": peak_mb}


@click.command()
@click.option("--bundle", "bundle_name", metavar="NAME|FILE", help="Bundle to use; without it the first installed one.")
@click.option("--workload", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Workload instead of 960 operators.")
@click.option("--points", type=click.IntRange(min=1000), default=100_000, show_default=True, help="Points of the sweep.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def main(bundle_name: str | None, workload: Path | None, points: int, as_json: bool) -> None:
    """Time `estimate` against what it cannot do without."""
    name = bundle_name or next(iter(bundle_names()), None)
    if name is None:
        raise click.ClickException("no bundle is installed; name one with --bundle")
    with tempfile.TemporaryDirectory() as folder:
        path = workload or write_long_workload(Path(folder) / "decoder.json")
        rows = [*in_process_timings(path, name), cold_start_timing(path, name, Path(folder) / "compiled")]
        sweep = sweep_rates(Path(folder), name, points)
    if as_json:
        timings = [asdict(row) | {"ratio": row.processor_s / row.processor_reference_s} for row in rows]
        click.echo(json.dumps({"timings": timings, "sweep": sweep}, indent=2))
        return
    click.echo(f"workload {path.name}, bundle {name}; medians of {IN_PROCESS_REPEATS} calls, {COMMAND_REPEATS} processes")
    for row in rows:
        target = f"(target {row.target_s * 1e3:5.1f})" if row.target_s is not None else ""
        ratio = row.processor_s / row.processor_reference_s
        measured = f"{row.median_s * 1e3:9.2f} ms, processor {row.processor_s * 1e3:7.2f}"
        click.echo(
            f"{row.what:27s}{measured} {target:17s}{ratio:6.1f} × {row.reference} (processor {row.processor_reference_s * 1e3:.2f} ms)"
        )
    click.echo(
        "sweep of {points:,.0f} points: {points_per_s:,.0f} points/s, {kernels_per_s:,.0f} kernel predictions/s (target {target:,.0f}), "
        "{memory_mb:.0f} MB".format(**sweep, target=SWEEP_TARGET)
    )


if __name__ == "__main__":
    main()
