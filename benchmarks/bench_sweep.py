"""How fast many points are: a sweep over batches, sequences and clocks, whole files, and a loop of the usual kind beside them.

    python benchmarks/bench_sweep.py [--bundle NAME|FILE] [--points N] [--json]

All in one run on one thread, so that ratios mean something on any machine.  The loop stands for published tools: for each operator
and clock it selects rows of a kernel table by pandas, solves a small non-negative least-squares problem with scipy, and keeps the sum.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from bench_estimate import compiled_modules, decoder_layer

from estimator import Sizes, load_bundle, read_workload, sweep_chunks, variants
from estimator.bundles.files import bundle_names

LAYERS = 4
KILOBYTE = 1e3
WORKLOADS_TARGET = 300.0
KERNELS_TARGET = 1e6
MEMORY_TARGET_MB = 500.0
TABLE_ROWS = 1600
NEIGHBOURS = 20
LOOP_CLOCKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One rate [1/s] or size beside its target."""

    what: str
    value: float
    unit: str
    target: float | None


def small_workload(folder: Path) -> Path:
    """A decoder of a few layers as an operator list."""
    path = folder / "decoder_b1_s512.json"
    path.write_text(json.dumps(decoder_layer() * LAYERS), encoding="utf-8")
    return path


def sweep_rates(path: Path, bundle_name: str, points: int) -> list[Rate]:
    """A sweep in pieces: points and kernel predictions a second of processor time, and the memory that it took."""
    bundle = load_bundle(bundle_name)
    clocks = bundle.gpu.clocks_mhz()
    # Every length has shapes of its own, so that nothing can be reused.
    lengths = range(96, 96 + -(-points // len(clocks)))
    begin = time.process_time()
    chosen = variants(read_workload(path, completion=False), at=Sizes(batch=1, sequence=512), sequence=lengths)
    variants_s = time.process_time() - begin
    kernels = done = 0
    begin = time.process_time()
    for piece in sweep_chunks(chosen, bundle, sm_clock_mhz=clocks):
        done += len(piece)
    seconds = time.process_time() - begin
    kernels = sum(len(variant.workload.operators) for variant in chosen) * len(clocks)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KILOBYTE
    return [
        Rate(what=f"sweep of {done} points", value=done / seconds, unit="points/s", target=None),
        Rate(what="kernel predictions in it", value=kernels / seconds, unit="1/s", target=KERNELS_TARGET),
        Rate(what="workloads rescaled", value=len(chosen) / variants_s, unit="1/s", target=None),
        Rate(what="workloads at all clocks", value=len(chosen) / seconds, unit="1/s", target=WORKLOADS_TARGET),
        Rate(what="peak memory of the process", value=peak_mb, unit="MB", target=MEMORY_TARGET_MB),
    ]


def file_rate(path: Path, bundle_name: str, repeats: int = 60) -> Rate:
    """Files read and estimated a second of processor time."""
    from estimator import estimate

    bundle = load_bundle(bundle_name)
    estimate(read_workload(path), bundle)
    begin = time.process_time()
    for _ in range(repeats):
        estimate(read_workload(path), bundle)
    return Rate(what="files read and estimated", value=repeats / (time.process_time() - begin), unit="workloads/s", target=WORKLOADS_TARGET)


def loop_rate(path: Path) -> Rate:
    """Kernel predictions a second of a per-operator loop with pandas and scipy; nan where these are not installed."""
    what = "per-operator loop (pandas, scipy)"
    try:
        import pandas as pd
        from scipy.optimize import nnls
    except ImportError:
        return Rate(what=what, value=float("nan"), unit="1/s", target=None)
    random = np.random.default_rng(0)
    sizes = 2.0 ** random.uniform(10, 30, (TABLE_ROWS, 3))
    table = pd.DataFrame(sizes, columns=["flop", "dram", "l2"])
    table["time"] = sizes @ np.array([1e-14, 1e-12, 2e-13]) + 3e-6
    operators = read_workload(path).operators
    begin = time.process_time()
    total, count = 0.0, 0
    for operator in operators:
        size = float(np.prod(operator.shape[:3]))
        for clock in range(LOOP_CLOCKS):
            rows = table.assign(distance=(np.log2(table["flop"]) - np.log2(size)).abs()).nsmallest(NEIGHBOURS, "distance")
            scale = rows["time"].max()
            found, _ = nnls((rows[["flop", "dram", "l2"]].to_numpy() / sizes.max()), (rows["time"] / scale).to_numpy())
            total += float(found.sum()) * scale * (clock + 1)
            count += 1
    assert np.isfinite(total)
    return Rate(what=what, value=count / (time.process_time() - begin), unit="1/s", target=None)


def import_rates(folder: Path) -> list[Rate]:
    """Processor time of imports in fresh processes [ms]: numpy, what the package adds, and what its three main names add; medians.

    Modules are compiled before, into `folder`.
    """
    environment = compiled_modules(folder)

    def median_ms(imports: str) -> float:
        clock = "time.process_time()"
        code = f"import time; b = {clock}; import numpy; n = {clock}; {imports}; print({clock} - n, n - b)"
        command = [sys.executable, "-c", code]
        subprocess.run(command, env=environment, capture_output=True, check=True)
        runs = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(IMPORT_REPEATS)]
        return float(np.median([float(run.stdout.split()[imports == "pass"]) for run in runs])) * KILOBYTE

    return [
        Rate(what="import numpy", value=median_ms("pass"), unit="ms", target=None),
        Rate(what="import estimator over numpy's", value=median_ms("import estimator"), unit="ms", target=IMPORT_TARGET_MS),
        Rate(what="with estimate and both readers", value=median_ms(MAIN_NAMES), unit="ms", target=None),
    ]


IMPORT_REPEATS = 7
IMPORT_TARGET_MS = 120.0
MAIN_NAMES = "from estimator import estimate, load_bundle, read_workload"


@click.command()
@click.option("--bundle", "bundle_name", metavar="NAME|FILE", help="Bundle to use; without it the first installed one.")
@click.option("--points", type=click.IntRange(min=1000), default=100_000, show_default=True, help="Points of the sweep.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def main(bundle_name: str | None, points: int, as_json: bool) -> None:
    """Rates of sweeps beside a per-operator loop."""
    name = bundle_name or next(iter(bundle_names()), None)
    if name is None:
        raise click.ClickException("no bundle is installed; name one with --bundle")
    with tempfile.TemporaryDirectory() as folder:
        path = small_workload(Path(folder))
        rates = [*sweep_rates(path, name, points), file_rate(path, name), *import_rates(Path(folder)), loop_rate(path)]
    if as_json:
        click.echo(json.dumps([asdict(rate) for rate in rates], indent=2))
        return
    for rate in rates:
        target = f"(target {rate.target:,.0f})" if rate.target is not None else ""
        click.echo(f"{rate.what:36s}{rate.value:14,.1f} {rate.unit:12s} {target}")
    loop, kernels = rates[-1].value, rates[1].value
    click.echo(f"the sweep predicts {kernels / loop:,.0f} kernels for one of the loop")


if __name__ == "__main__":
    main()
