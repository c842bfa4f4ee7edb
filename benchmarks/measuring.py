"""`measure()` on simulated boards: against `collect run` on the same load, against the board's own energy, and what it costs.

    python benchmarks/measuring.py [--boards 5] [--first 0] [--json]

All figures are simulated.  A line for every length of the load: largest and mean difference to `collect run` of a program on another day
of the same board [percent]; then, for `measure`, `collect run` and `collect run --std` with one batch: mean error against the
energy that the board drew [percent], mean stated error [percent], and the shares that are off by more than one and two stated errors, or
have no energy as no reading fell within them [percent].  Sensors are characterised first, as `collect sensor --pmd sim` does.  The last
line holds host times: opening the board, a further block, a window.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from showing import show

from collector import measure
from collector.bench import open_bench
from collector.measuring.measure import Measurement, open_watched
from collector.programs.program import Program, measure_program, stamped
from collector.sampling import Sampler
from collector.sensing.calibration import load_calibration
from collector.sensing.live import characterise_sensor
from collector.sensing.repeated_measurement import measure_repeated
from collector.simulated.profile import board_names
from estimator.formats import read_workload, write_workload
from estimator.transforms.rewriting import with_precision
from estimator.vocabulary.quantities import Array

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "gpt2-prefill.json"
LENGTHS_S = (0.03, 0.1, 0.3, 1.0, 3.0)


def characterised(board: str, seed: int, folder: Path) -> Path:
    """A file with the sensor of a board, characterised with a meter."""
    path = folder / f"{seed}.json"
    with open_bench(board, seed=seed, meter=True) as bench:
        path.write_text(json.dumps(characterise_sensor(bench, Sampler(bench.gpu, bench.sensors)).document()))
    return path


def program(seed: int, folder: Path) -> str:
    """A workload file whose period is its own: one near a multiple of the sensor's would hide or repeat itself on all boards alike."""
    path, whole = folder / f"w{seed}.json", with_precision(read_workload(EXAMPLE), "fp16")
    factor = np.random.default_rng(seed).uniform(0.5, 1.5, len(whole.counts))
    counts = tuple(float(max(1, round(count * own))) for count, own in zip(whole.counts, factor, strict=True))
    write_workload(replace(whole, counts=counts), path)
    return str(path)


def energies(board: str, seed: int, sensor: Path, workload: str, length_s: float) -> tuple[float, ...]:
    """Energy [J], standard error [J] and truth [J] by `measure`, by `collect run`, and by `collect run --std` in one batch."""
    watched = open_watched(board, str(sensor), seed)
    watched.simulated_program(workload)
    start_ns = watched.now_ns()
    watched.simulated_program(workload)
    times = max(1, round(length_s / ((watched.now_ns() - start_ns) * 1e-9)))
    watched.instruments.clock.wait(0.6)
    block = Measurement({board: watched})
    start_ns = watched.now_ns()
    for _ in range(times):
        watched.simulated_program(workload)
    true_j = watched.instruments.planted_energy_j(start_ns, watched.now_ns())
    block.end()
    with open_bench(board, seed=seed) as bench:
        run = measure_program(
            bench, Sampler(bench.gpu, bench.sensors), Program(command=(workload, str(times))), load_calibration(sensor), asked_mhz=None
        )
        end_ns = round((run.start_s + run.latency_s) * 1e9)
        run_true_j = bench.planted_energy_j(round(run.start_s * 1e9), end_ns) if bench.planted_energy_j else float("nan")
    several = several_energies(board, seed, sensor, Program(command=(workload, str(times))))
    return block.energy_j, block.energy_std_j, true_j, run.energy_j, run.energy_std_j, run_true_j, *several


def several_energies(board: str, seed: int, sensor: Path, program: Program) -> tuple[float, float, float]:
    """Energy of a mean execution [J], its standard error [J] and the truth [J], from one batch of executions."""
    with open_bench(board, seed=seed) as bench:
        found = measure_repeated(
            bench, Sampler(bench.gpu, bench.sensors), stamped(program, bench), load_calibration(sensor), asked_std=1.0, longest_s=1e3
        )
        (batch,), load = found.runs, found.runs[0].load
        kept = load.start_s >= load.start_s[0] + batch.plan.discard_s
        ends_ns = np.round(1e9 * np.column_stack([load.start_s, load.end_s])[kept]).astype(np.int64).tolist()
        true_j = np.mean([bench.planted_energy_j(*ends) if bench.planted_energy_j else float("nan") for ends in ends_ns])
    return found.energy_j, found.energy_std_j, float(true_j)


def scored(name: str, energy_j: Array, std_j: Array, true_j: Array) -> dict[str, float]:
    """Mean error and mean stated error, and the shares beyond one and two stated errors, or without an energy [percent]."""
    known = np.isfinite(energy_j)
    off = np.abs(energy_j - true_j)[known]
    shares = [off / true_j[known], std_j[known] / true_j[known], off > std_j[known], off > 2.0 * std_j[known], ~known]
    labels = ("error", "stated", "beyond 1", "beyond 2", "unknown")
    return {f"{name} {label}": 100.0 * float(np.mean(share)) for label, share in zip(labels, shares, strict=True)}


def overhead() -> dict[str, float]:
    """Host times of `measure` [s]: opening a simulated board, a further block, a window."""
    measuring = measure(gpu="sim:a100-pcie-40gb")
    begun_s = time.perf_counter()
    with measuring:
        pass
    opened_s = time.perf_counter()
    for _ in range(100):
        with measuring as block:
            pass
    blocks_s = time.perf_counter()
    with measuring as block:
        for _ in range(1000):
            with block.window("w"):
                pass
        windows_s = time.perf_counter()
    return {"open_s": opened_s - begun_s, "block_s": (blocks_s - opened_s) / 100, "window_s": (windows_s - blocks_s) / 1000}


@click.command()
@click.option("--boards", type=click.IntRange(1), default=5, show_default=True)
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="First seed.")
@click.option("--json", "as_json", is_flag=True)
def main(boards: int, first: int, as_json: bool) -> None:
    """Print differences, errors and coverage."""
    names = board_names()
    worlds = [(f"sim:{names[seed % len(names)]}", seed) for seed in range(first, first + boards)]
    rows: list[dict[str, float]] = []
    with TemporaryDirectory() as folder:
        sensors = [characterised(*world, Path(folder)) for world in worlds]
        tables = [
            [energies(*world, sensor, program(world[1], Path(folder)), length_s) for world, sensor in zip(worlds, sensors, strict=True)]
            for length_s in LENGTHS_S
        ]
    for length_s, table in zip(LENGTHS_S, tables, strict=True):
        ours, run, several = np.array(table).T.reshape(3, 3, -1)
        apart = 100.0 * np.abs((ours[0] / ours[2]) / (run[0] / run[2]) - 1.0)
        row = {"load_s": length_s, "boards": boards, "apart_max": np.nanmax(apart), "apart_mean": np.nanmean(apart)}
        rows.append(row | scored("measure", *ours) | scored("run", *run) | scored("std", *several))
    show([*rows, overhead()], as_json)


if __name__ == "__main__":
    main()
