"""Cost of collecting: polling, memory over a long campaign, and the speed of simulated board time.

    python benchmarks/bench_collector.py [--polling-s S] [--hours H] [--week/--no-week] [--json]

Polling reads the driver's stand-in (gcc is needed) a thousand times a second through nvidia-ml-py; the stand-in returns the time,
so that every stamp can be compared with the truth.  The campaign is `full` at three clocks on the simulated A100, stopped after `--hours`
of its time; the week consists of long measurements, and its memory is recorded from its first hour to its last.  CPU time is of this
process only and more reliable than wall time on a shared machine.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from showing import show

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from collector.bench import open_bench  # noqa: E402
from collector.campaigns.files import CampaignSpec, load_campaign  # noqa: E402
from collector.campaigns.plan import plan_campaign  # noqa: E402
from collector.campaigns.running import Campaign, Progress, campaign_key  # noqa: E402
from tests.collector.nvml.stub import Boards, built  # noqa: E402

BOARD = "sim:a100-pcie-40gb"
CLOCKS = (510.0, 900.0, 1410.0)
POLL_S = 0.001
WITHIN_NS = 1_000_000
TURN_US = 20_000_000  # the stand-in's time wraps around
SECONDS_PER_HOUR = 3600.0
WEEK_S = 7 * 24 * SECONDS_PER_HOUR
LONG_WINDOW_S = 30.0

POLLING = """
import json, sys, time
from collector.devices.nvml import NvmlPowerSensor
from collector.devices.nvml_library import open_nvml
with open_nvml() as library:
    sensor = NvmlPowerSensor(library, library.handles()[0], float(sys.argv[2]))
    with sensor.readings:
        before, begun = time.process_time(), time.monotonic()
        time.sleep(float(sys.argv[1]))
        cpu, wall = time.process_time() - before, time.monotonic() - begun
        stamps, rows = sensor.readings.take()
begun = time.process_time()
for _ in range(1000):
    time.sleep(float(sys.argv[2]))
sleep_s = (time.process_time() - begun) / 1000
heard = {"sleep_s": sleep_s, "cpu_s": cpu, "wall_s": wall, "stamps": stamps.tolist(), "power_w": rows[:, 0].tolist()}
json.dump(heard, sys.stdout)
"""


def polling(seconds: float) -> dict[str, Any]:
    """Results of a thousand polls a second of the stand-in."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        boards = Boards(folder / "boards")
        boards.set(tell_time=1)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(built(folder)), "WATTPRINT_NVML_STUB": str(boards.path)}
        command = [sys.executable, "-c", POLLING, str(seconds), str(POLL_S)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    heard = json.loads(ended.stdout)
    power_w = np.array(heard["power_w"], dtype=np.float64)
    told = np.isfinite(power_w)  # the stand-in's hours contain impossible power values, which are left out
    truth_us = np.round(power_w[told] * 1e3).astype(np.int64)
    stamp_us = np.array(heard["stamps"], dtype=np.int64)[told] // 1000
    error_us = (stamp_us - truth_us + TURN_US // 2) % TURN_US - TURN_US // 2
    return {
        "polls_per_s": round(len(stamp_us) / heard["wall_s"], 1),
        "core_share": round(heard["cpu_s"] / heard["wall_s"], 4),
        "cpu_us_per_poll": round(1e6 * heard["cpu_s"] / max(len(stamp_us), 1), 1),
        "cpu_us_of_a_bare_sleep": round(1e6 * heard["sleep_s"], 1),
        "within_1_ms": round(float(np.mean(np.abs(error_us) * 1000 <= WITHIN_NS)), 4),
        "stamp_error_median_us": float(np.median(np.abs(error_us))),
        "stamp_error_p99_us": float(np.percentile(np.abs(error_us), 99)),
    }


def campaign(spec: CampaignSpec, seconds: float, output: Path) -> dict[str, Any]:
    """Run a campaign on the simulated board for `seconds` of its time."""
    memory: list[tuple[float, float]] = []
    with open_bench(BOARD, seed=7) as bench:
        plan = plan_campaign(spec, CLOCKS, (), 7, bench)
        cpu, wall = time.process_time(), time.monotonic()

        def report(progress: Progress) -> None:
            memory.append((bench.clock.now_ns() * 1e-9, resident_mib()))

        outcome = Campaign(bench, spec, plan, campaign_key(bench, spec, plan, (), 7), output, budget_s=seconds, report=report).run()
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    time_s, mib = np.array(memory).T
    tenth = max(1, len(mib) // 10)
    return {
        "board_time_h": round(outcome.board_time_s / SECONDS_PER_HOUR, 2),
        "rows": outcome.rows,
        "cpu_s": round(cpu, 1),
        "wall_s": round(wall, 1),
        "cpu_ms_per_row": round(1e3 * cpu / outcome.rows, 2),
        "memory_after_a_tenth_mib": round(float(mib[tenth]), 1),
        "memory_at_the_end_mib": round(float(mib[-1]), 1),
        "memory_growth_mib_per_day": round(float(np.polyfit(time_s[tenth:], mib[tenth:], 1)[0]) * 24 * SECONDS_PER_HOUR, 2),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def resident_mib() -> float:
    """Present memory of this process [MiB]."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


@click.command()
@click.option("--polling-s", default=20.0, show_default=True)
@click.option("--hours", default=24.0, show_default=True, help="Board time of the campaign; 0 for none.")
@click.option("--week/--no-week", default=True, help="A week of long measurements.")
@click.option("--json", "as_json", is_flag=True)
def main(polling_s: float, hours: float, week: bool, as_json: bool) -> None:
    """Measure and print."""
    results: dict[str, Any] = {"polling": polling(polling_s)} if polling_s > 0 else {}
    with tempfile.TemporaryDirectory() as name:
        if hours > 0:
            results["campaign"] = campaign(load_campaign("full"), hours * SECONDS_PER_HOUR, Path(name) / "day.parquet")
        if week:
            full = load_campaign("full")
            long = replace(full, measurement=replace(full.measurement, window_s=LONG_WINDOW_S))
            results["week"] = campaign(long, WEEK_S, Path(name) / "week.parquet")
    show(({"what": what, **numbers} for what, numbers in results.items()), as_json)


if __name__ == "__main__":
    main()
