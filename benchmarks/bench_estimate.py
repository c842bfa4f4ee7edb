"""Time of an estimate: in process, over many clocks, as a command from a cold start, and in a sweep.

    python benchmarks/bench_estimate.py [--bundle NAME|FILE] [--workload FILE] [--points N] [--json]

Results are medians over many repeats, of wall time and of processor time: on a machine with other work the second is the time on a free
core.  Times differ between machines, so each has a reference of the same run, measured alternately with it: parsing the same file as JSON,
or starting Python with numpy and click.  Modules are compiled once before, as in an installation.  The sweep covers sequence lengths and
all clocks on one thread; its rates are per second of processor time.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import click
from showing import show

from estimator import Sizes, estimate, load_bundle, read_workload, sweep_chunks, variants
from estimator.bundle.files import bundle_names

LISTED_OPERATORS = 960
CLOCK_MHZ = 900.0
CLOCKS_MHZ = tuple(210.0 + 15.0 * step for step in range(81))  # every clock of an A100

ONE_CLOCK_TARGET_MS, ALL_CLOCKS_TARGET_MS, COLD_START_TARGET_MS = 5.0, 20.0, 350.0

MODEL = ("llm", "qwen3-32b", "--gpu", "h100", "--prompt", "1024", "--output", "512", "--engine", "vllm-0.12")
SERVED = (*MODEL, "--tensor-parallel", "2", "--batch", "32")
SERVED_SWEEP = (*MODEL, "--tensor-parallel", "1,2,4,8", "--batch", "1:125:1", "--freqs", "1500,1830", "--csv")
SERVED_TARGET_MS, SERVED_SWEEP_TARGET_MS = 600.0, 3000.0

SWEEP_LAYERS = 4
SWEEP_TARGET = 2e6  # kernel predictions a second

IN_PROCESS_REPEATS = 60
COMMAND_REPEATS, SWEEP_REPEATS = 15, 3

# A decoder layer in an EnergAIzer operator list: 1.5 billion parameters, 512 tokens, grouped-query attention.
TOKENS, WIDTH, FEED_FORWARD, HEADS, KV_WIDTH, HEAD_DIM = 512, 1536, 8960, 12, 256, 128


Timing = dict[str, object]
"""Median times with the target [ms] and the times of a reference of the same run; processor: processor time, including children."""


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
    """Write a list of 960 operators: the layer repeated."""
    layer = decoder_layer()
    operators = [layer[i % len(layer)] for i in range(LISTED_OPERATORS)]
    path.write_text(json.dumps(operators), encoding="utf-8")
    return path


def timing(what: str, target_ms: float | None, work: Callable[[], object], other: Callable[[], object], repeats: int) -> Timing:
    """Durations of a call and of a reference, measured alternately, after one of each that is not counted."""
    calls = {"": work, "reference ": other}
    taken: dict[str, list[float]] = {}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            start, processor_start = time.perf_counter(), processor_s()
            call()
            if turn:
                taken.setdefault(f"{name}ms", []).append(1e3 * (time.perf_counter() - start))
                taken.setdefault(f"{name}processor ms", []).append(1e3 * (processor_s() - processor_start))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    ratio = medians["processor ms"] / medians["reference processor ms"]
    return {"what": what, **medians, "target ms": target_ms, "times the reference": ratio}


def processor_s() -> float:
    """Processor time so far of this process and of its ended children [s]."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def compiled_modules(folder: Path) -> dict[str, str]:
    """An environment in which Python processes cache compiled modules in a folder for the next processes."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(folder), "OMP_NUM_THREADS": "1"}


def run_python(environment: dict[str, str], *arguments: str) -> None:
    """Run a Python process to its end without its output; raises on failure."""
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise click.ClickException(f"{' '.join(arguments)}: {done.stderr.strip()}")


def timings(workload: Path, bundle_name: str, folder: Path) -> Iterator[Timing]:
    """Timings in process relative to parsing the workload as JSON, and of the command relative to starting Python with numpy and click."""
    bundle, content = load_bundle(bundle_name), workload.read_bytes()
    cases: tuple[tuple[str, float | None, Callable[[], object]], ...] = (
        ("file to result, 1 clock", ONE_CLOCK_TARGET_MS, lambda: estimate(read_workload(workload), bundle, sm_clock_mhz=CLOCK_MHZ)),
        ("file to result, 81 clocks", ALL_CLOCKS_TARGET_MS, lambda: estimate(read_workload(workload), bundle, sm_clock_mhz=CLOCKS_MHZ)),
        ("bundle from its file", None, lambda: load_bundle(bundle_name)),
    )
    for what, target, work in cases:
        yield timing(what, target, work, lambda: json.loads(content), IN_PROCESS_REPEATS)
    commands: tuple[tuple[str, float, tuple[str, ...], int], ...] = (
        ("command, cold start", COLD_START_TARGET_MS, (str(workload), "--bundle", bundle_name, "--freq", "900"), COMMAND_REPEATS),
        ("estimate llm, cold start", SERVED_TARGET_MS, SERVED, COMMAND_REPEATS),
        ("estimate llm, 1,000 points", SERVED_SWEEP_TARGET_MS, SERVED_SWEEP, SWEEP_REPEATS),
    )
    environment, start = compiled_modules(folder), "import sys; from estimator.cli import main; sys.exit(main())"
    for what, limit_ms, words, repeats in commands:
        yield timing(
            what,
            limit_ms,
            partial(run_python, environment, "-c", start, *words),
            partial(run_python, environment, "-c", "import numpy, click"),
            repeats,
        )


def sweep_rates(folder: Path, bundle_name: str, points: int) -> dict[str, float]:
    """A sweep in pieces: points and kernel predictions a second of processor time, and the memory of the process [MB]."""
    path = folder / "decoder_b1_s512.json"
    path.write_text(json.dumps(decoder_layer() * SWEEP_LAYERS), encoding="utf-8")
    bundle = load_bundle(bundle_name)
    clocks = bundle.gpu.clocks_mhz()
    lengths = range(96, 96 + -(-points // len(clocks)))  # every length has its own shapes, so that no result can be reused
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
    """Time `estimate` relative to its minimum work."""
    name = bundle_name or next(iter(bundle_names()), None)
    if name is None:
        raise click.ClickException("no bundle is installed; name one with --bundle")
    with tempfile.TemporaryDirectory() as folder:
        path = workload or write_long_workload(Path(folder) / "decoder.json")
        sweep = ({"what": "sweep", "target kernels_per_s": SWEEP_TARGET, **sweep_rates(Path(folder), name, points)} for _ in range(1))
        show(chain(timings(path, name, Path(folder) / "compiled"), sweep), as_json)


if __name__ == "__main__":
    main()
