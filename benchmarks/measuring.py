"""`measure()` on simulated boards: against `collect run` on the same load, against the board's own energy, and what it costs.

    python benchmarks/measuring.py [--boards 20] [--first 0] [--json]

All figures are simulated.  A line for every length of the load: largest and mean difference to `collect run` of a program on another day
of the same board [percent], mean error against the energy that the board drew [percent], and the share of true energies within the stated
90 % of the two (`measure` and `collect run`) [percent].  Sensors are characterised first, as `collect sensor --pmd sim` does.  The
last line holds host times: opening the board, a further block, a window.
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
from collector.programs.program import Program, measure_program
from collector.sampling import Sampler
from collector.sensing.calibration import load_calibration
from collector.sensing.live import characterise_sensor
from collector.simulated.profile import board_names
from estimator.formats import read_workload, write_workload
from estimator.transforms.rewriting import with_precision
from estimator.vocabulary.quantities import NORMAL_90

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "gpt2-prefill.json"
LENGTHS_S = (0.3, 1.0, 3.0)


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
    """Energy [J], standard error [J] and truth [J] by `measure`, then by `collect run`."""
    watched = open_watched(board, str(sensor), seed)
    watched.simulated_program(workload)
    start_ns = watched.now_ns()
    watched.simulated_program(workload)
    times = max(1, round(length_s / ((watched.now_ns() - start_ns) * 1e-9)))
    time.sleep(0.6)
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
    return block.energy_j, block.energy_std_j, true_j, run.energy_j, run.energy_std_j, run_true_j


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
@click.option("--boards", type=click.IntRange(1), default=20, show_default=True)
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
        found = np.array(table).T
        ours_j, std_j, true_j, run_j, run_std_j, run_true_j = found
        apart = 100.0 * np.abs((ours_j / true_j) / (run_j / run_true_j) - 1.0)
        inside = [np.abs(value - true) <= NORMAL_90 * std for value, std, true in ((ours_j, std_j, true_j), (run_j, run_std_j, run_true_j))]
        errors = 100.0 * np.abs(ours_j / true_j - 1.0)
        row = {"load_s": length_s, "boards": boards, "apart_max": apart.max(), "apart_mean": apart.mean(), "error_mean": errors.mean()}
        rows.append(row | {"measure inside": 100.0 * inside[0].mean(), "run inside": 100.0 * inside[1].mean()})
    show([*rows, overhead()], as_json)


if __name__ == "__main__":
    main()
