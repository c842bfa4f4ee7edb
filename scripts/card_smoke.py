"""First look at a lent card, in two minutes: how later stages poll, whether they trace, how long their short runs are.

    python -m scripts.card_smoke --gpu 0 --folder build/real-card

Every step writes what it found to smoke.json; a step that fails or hangs is named there, and costs the others nothing.  No step changes
a clock, a limit or a mode of the card.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from collector.bench import open_bench
from collector.boards import SIMULATED
from collector.devices.protocols import THROTTLE_BITS, Bench
from collector.errors import CollectorError
from collector.sampling import SECONDS_PER_NS, Sampler, Trace
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.whole_file import write_whole
from estimator.vocabulary.workload import make_operator
from microbench.errors import MicrobenchError
from microbench.sizing import launches_for
from microbench.toolchain.compile import find_toolchain

TRACE_S: Final = 90.0
"""Time limit of the process that tries to trace [s]."""
TRACED_SIZES: Final = (256, 384, 512, 768, 1024, 1536, 2048, 3072)
LEAST_TRACED: Final = 0.75
"""Share of the tried kernels from which on tracing is worth its time [1]."""

CALLS: Final = 60
LOAD_SIZE: Final = 8192
"""Size of the square product that takes a card to its power limit."""
LOAD_S, REST_S = 3.0, 1.0

SETTLED: Final = 0.01
"""Distance from the final clock within which the power limit has settled [1], unless the clock varies more in the last third of the run."""
TIMED_S: Final = (0.1, 0.4)
"""Shortest and longest timed run [s].

A timed run gives a time of launch and the clock that ran meanwhile, so it need not outlast the power limit, which took 1.04 s to settle
on an H200: with runs of 1.0 s in place of 0.4 s, seven minutes hold 330 kernels in place of 385.  What it measures before the limit takes
hold belongs to the clock of that moment.
"""
TIMED_SHARE: Final = 0.8
"""Part of a timed run before the launches that count [1]: the last three of twenty segments count."""

TIMED_STATES: Final = 4.0
"""States of the board that a timed run should see [1]."""

POLL_MS: Final = (2.0, 60.0)
POLL_UPDATES: Final = 20.0
"""A period between readings is a twentieth of an update, and no shorter than what the load's readings took: the polling rests four times as
long as a slow call takes.  Calls at rest decide nothing: the energy counter's took 2.4 ms on an H200, a reading of the power 0.03 ms."""

FAILURES: Final = (
    *(CollectorError, MicrobenchError, subprocess.SubprocessError, ImportError, OSError, RuntimeError),
    *(AttributeError, LookupError, TypeError, ValueError, ArithmeticError),
)
"""What a step may fail with: the second line is what versions of libraries that nobody chose answer."""

Document = dict[str, Any]
NOTHING_TRACED: Final[Document] = {"named": 0, "of": 0, "kernel": ""}


def costs(bench: Bench) -> Document:
    """Cost of calls of the driver at rest [s]: median and 99th percentile."""
    calls: dict[str, Callable[[], object]] = {
        "energy": bench.sensors[0].read_energy, "power_limit": bench.gpu.power_limit_w, "state": bench.gpu.state,
    }  # fmt: skip
    found = {}
    for name, call in calls.items():
        seconds = []
        for _ in range(CALLS):
            before_ns = bench.clock.now_ns()
            call()
            seconds.append((bench.clock.now_ns() - before_ns) * SECONDS_PER_NS)
        found[name] = percentiles(np.array(seconds))
    return found


def percentiles(seconds: Array) -> dict[str, float]:
    """Median and 99th percentile [s]; nan without a value."""
    p50, p99 = np.percentile(seconds, [50, 99]) if len(seconds) else (math.nan, math.nan)
    return {"p50_s": float(p50), "p99_s": float(p99)}


def load(bench: Bench) -> Document:
    """Three seconds of a large product: clock, power, the lag of the limit, the time between updates and between readings."""
    sampler = Sampler(bench.gpu, bench.sensors)
    prepared = bench.runner.prepare(make_operator("gemm", "linear", "bf16", batch=1, m=LOAD_SIZE, n=LOAD_SIZE, k=LOAD_SIZE))
    launch_s = float(bench.runner.run(prepared, 5).segment_s.mean())
    bench.clock.wait(REST_S)
    sampler.drain()
    record = bench.runner.run(prepared, launches_for(LOAD_S, launch_s))
    return {"launch_s": float(record.segment_s[-3:].mean()), **limit_lag(sampler.drain(), record.start_ns, record.end_ns)}


def limit_lag(trace: Trace, start_ns: int, end_ns: int) -> Document:
    """How a board comes to its limit within a run: final clock and power, and the time until the clock stays near its end."""
    states, board = trace.states, trace.board
    inside = (states.host_ns >= start_ns) & (states.host_ns <= end_ns)
    since_s, clock = (states.host_ns[inside] - start_ns) * SECONDS_PER_NS, states.sm_clock_mhz[inside]
    end = clock[-max(1, len(clock) // 3) :]
    last_mhz = float(np.median(end)) if len(clock) else math.nan
    around = max(SETTLED * last_mhz, float(np.ptp(end))) if len(clock) else math.nan  # a board at its limit steps to and fro
    away = np.flatnonzero(np.abs(clock - last_mhz) > around)
    capped = bool(np.any(states.throttle_mask[inside] & THROTTLE_BITS["sw_power_cap"]))
    read = (board.host_ns >= start_ns) & (board.host_ns <= end_ns)
    stamps_s, power = board.host_ns[read] * SECONDS_PER_NS, board.power_w[read]
    changed = stamps_s[1:][power[1:] != power[:-1]]
    return {
        "capped": capped,
        "settle_s": float(since_s[min(away[-1] + 1, len(since_s) - 1)]) if capped and len(away) else 0.0,
        "clock_mhz": [float(clock.max()) if len(clock) else math.nan, last_mhz],
        "power_w": float(power[-1]) if len(power) else math.nan,
        "update_s": float(np.median(np.diff(changed))) if len(changed) > 1 else math.nan,
        "reading": percentiles(np.diff(stamps_s)),
        "state": percentiles(np.diff(since_s)),
    }


def traced(bench: Bench) -> Document:
    """How many kernels have a name, and why others have none."""
    found = [bench.runner.prepare(make_operator("gemm", "linear", "bf16", batch=1, m=size, n=1024, k=1024)) for size in TRACED_SIZES]
    named = [one.kernel_name for one in found if not one.untraced]
    return {
        "named": len(named),
        "of": len(found),
        "kernel": next(iter(named), ""),
        "why": next((one.untraced for one in found if one.untraced), ""),
    }


def tracing(gpu: str) -> Document:
    """The trial of tracing in a process of its own, under a time limit: CUPTI can hang."""
    command = [sys.executable, "-m", "scripts.card_smoke", "--gpu", gpu, "--trace"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TRACE_S, check=False)
    except subprocess.TimeoutExpired:
        return NOTHING_TRACED | {"why": f"no answer within {TRACE_S:g} s"}
    if done.returncode:
        return NOTHING_TRACED | {"why": f"exit status {done.returncode}: {done.stderr.strip()[-300:]}"}
    answer: Document = json.loads(done.stdout)
    return answer


def fp8_products() -> Document:
    """Time of an fp8 product with and without fast accumulation [s]; campaigns measure the one without."""
    import torch

    left, right = (torch.randn(LOAD_SIZE, LOAD_SIZE, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    scale, found = torch.ones((), device="cuda"), {}
    for fast in (False, True, False, True):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        for turn in range(60):
            if turn == 10:
                marks[0].record()
            torch._scaled_mm(left, right.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=fast)
        marks[1].record()
        torch.cuda.synchronize()
        found["fast_s" if fast else "exact_s"] = marks[0].elapsed_time(marks[1]) * 1e-3 / 50
    return found


def programs() -> Document:
    """The programs that later stages start: a missing one can still travel with the next call."""
    found = find_toolchain()
    return {"ptxas": f"{found.ptxas} {found.ptxas_version}", "nvdisasm": str(found.nvdisasm), "ncu": shutil.which("ncu") or "missing"}


def decided(found: Document) -> Document:
    """Settings of later stages: what a step did not find out gets the cautious value."""
    seen = found.get("load", {})
    reading_s = seen.get("reading", {}).get("p50_s", math.nan)
    wanted_s = np.nanmax([reading_s, seen.get("update_s", math.nan) / POLL_UPDATES, 1e-3 * POLL_MS[0]])
    trace = found.get("trace", NOTHING_TRACED)
    states_s = TIMED_STATES * seen.get("state", {}).get("p50_s", math.nan)
    timed_s = math.ceil(20.0 * np.nanmax([TIMED_S[0], seen.get("settle_s", 0.0) / TIMED_SHARE, states_s])) / 20.0
    return {
        "poll_ms": round(float(np.clip(1e3 * wanted_s, *POLL_MS)), 1),
        "trace": trace["of"] > 0 and trace["named"] >= LEAST_TRACED * trace["of"],
        "timed_s": min(timed_s, TIMED_S[1]),
    }


def looked(gpu: str, folder: Path) -> Document:
    """Every step in turn; smoke.json is whole after each."""
    found: Document = {"gpu": gpu, "failed": {}}

    def step(name: str, work: Callable[[], Document]) -> None:
        try:
            found[name] = work()
        except FAILURES as error:
            found["failed"][name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        found["settings"] = decided(found)
        write_whole(folder / "smoke.json", (json.dumps(found, indent=1) + "\n").encode())

    if not gpu.startswith(SIMULATED):
        step("nvidia_smi", lambda: {"text": subprocess.check_output(["nvidia-smi", "-q"], text=True, timeout=30)})
    step("programs", programs)
    with open_bench(gpu, trace=False) as bench:
        step("calls", lambda: costs(bench))
        step("load", lambda: load(bench))
        found["board"] = bench.gpu_spec.name
        if not bench.simulated:
            step("fp8", fp8_products)
        found["simulated_s"] = bench.simulated * bench.clock.now_ns() * SECONDS_PER_NS
    step("trace", lambda: tracing(gpu))  # last: the first process waits longest for libraries of a machine that just started
    return found


def lines_of(found: Document) -> list[str]:
    """The first look for people."""
    seen, chosen = found.get("load", {}), found["settings"]
    lines = [f"{name} call: {1e3 * one['p50_s']:.2f} ms (p99 {1e3 * one['p99_s']:.2f} ms)" for name, one in found.get("calls", {}).items()]
    if seen:
        first, last = seen["clock_mhz"]
        lines.append(f"under load: {first:.0f} to {last:.0f} MHz in {1e3 * seen['settle_s']:.0f} ms, {seen['power_w']:.0f} W")
        lines.append(f"readings every {1e3 * seen['reading']['p50_s']:.1f} ms, updates every {1e3 * seen['update_s']:.0f} ms")
    if "trace" in found:
        lines.append(f"traced {found['trace']['named']} of {found['trace']['of']} kernels; {found['trace']['why'] or 'all have names'}")
    if "fp8" in found:
        lines.append("fp8 product: " + ", ".join(f"{name} {1e3 * seconds:.3f} ms" for name, seconds in found["fp8"].items()))
    lines += [f"{name}: {place}" for name, place in found.get("programs", {}).items()]
    lines += [f"failed: {name}: {why}" for name, why in found["failed"].items()]
    on = "on" if chosen["trace"] else "off"
    lines.append(f"decided: readings every {chosen['poll_ms']:g} ms, timed runs of {chosen['timed_s']:g} s, tracing {on}")
    return lines


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or 1 where no board can be opened."""
    parser = argparse.ArgumentParser(prog="card_smoke", description="First look at a lent card.")
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--folder", type=Path, default=Path("build/real-card"))
    parser.add_argument("--trace", action="store_true", help="only try to trace, and print what was seen")
    given = parser.parse_args(words)
    try:
        if given.trace:
            with open_bench(given.gpu) as bench:
                click.echo(json.dumps(traced(bench)))
            return 0
        click.echo("\n".join(lines_of(looked(given.gpu, given.folder))), err=True)
    except (CollectorError, MicrobenchError, OSError) as error:
        click.echo(f"card_smoke: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
