"""The daemon's figures for Prometheus: base units, names and labels that stay, text exposition format 0.0.4."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from collector.daemon.jobs import RUNNING, BoardState, Job, Overview

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
HZ_PER_MHZ: Final = 1e6

COUNTERS: Final[dict[str, str]] = {
    "rows_written": "Rows measured and on disk.",
    "rows_flagged": "Rows measured that carry a doubt.",
    "rows_refused": "Kernels that could not run.",
    "workers_started": "Workers started.",
    "workers_died": "Workers that ended without a word.",
    "workers_hung": "Workers that were silent for too long and were ended.",
    "retries": "Jobs that were queued again after a failure that may pass.",
}
"""Counters by board, and what they count; they live as long as the state folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One figure of a metric."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric: its name without the prefix, `gauge` or `counter`, what it is, and its figures."""

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...]


def exposition(overview: Overview) -> str:
    """All metrics of an overview as text."""
    lines: list[str] = []
    for metric in metrics(overview):
        name = f"wattprint_{metric.name}"
        lines += [f"# HELP {name} {_escaped(metric.help)}", f"# TYPE {name} {metric.kind}"]
        for sample in metric.samples:
            labels = ",".join(f'{key}="{_escaped(value, quote=True)}"' for key, value in sample.labels.items())
            lines.append(f"{name}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}")
    return "\n".join(lines) + "\n"


def metrics(overview: Overview) -> Iterator[Metric]:
    """Every metric; what is not known has no sample."""
    daemon = overview.daemon
    yield _one("build_info", "Version of the daemon; the value is 1.", 1.0, {"version": daemon.version})
    yield _one("daemon_start_time_seconds", "When the daemon started, since 1970.", daemon.started_unix_s)
    yield _one("daemon_draining", "1 while the daemon ends.", float(daemon.draining))
    jobs = tuple(Sample(labels={"state": state}, value=float(count)) for state, count in overview.counts.items())
    yield Metric(name="jobs", kind="gauge", help="Jobs by state.", samples=jobs)
    running = {job.request.board: job for job in overview.jobs if job.state == RUNNING}
    yield from _board_gauges(overview.boards, running)
    for name, text in COUNTERS.items():
        samples = tuple(Sample(labels=_labels(board), value=overview.counters.get((name, board.board), 0.0)) for board in overview.boards)
        yield Metric(name=f"{name}_total", kind="counter", help=text, samples=samples)


def _board_gauges(boards: tuple[BoardState, ...], running: Mapping[str, Job]) -> Iterator[Metric]:
    def gauge(name: str, text: str, values: Mapping[str, float]) -> Metric:
        known = [(board, values.get(board.board, math.nan)) for board in boards]
        samples = tuple(Sample(labels=_labels(board), value=value) for board, value in known if math.isfinite(value))
        return Metric(name=name, kind="gauge", help=text, samples=samples)

    yield gauge("board_busy", "1 while a worker measures on the board.", {board.board: float(board.board in running) for board in boards})
    yield gauge(
        "job_progress_ratio",
        "Share of the running job's points that are finished.",
        {k: j.done / j.total for k, j in running.items() if j.total},
    )
    yield gauge("job_remaining_seconds", "Time to the running job's end at its pace so far.", {k: j.eta_s for k, j in running.items()})
    yield gauge("job_board_time_seconds", "The board's time that the running job has used.", {k: j.used_s for k, j in running.items()})
    yield gauge("board_power_watts", "Power of the last row.", {b.board: b.power_w for b in boards})
    yield gauge("board_sm_clock_hertz", "SM clock of the last row.", {b.board: HZ_PER_MHZ * b.sm_clock_mhz for b in boards})
    yield gauge("board_temperature_celsius", "Temperature of the last row.", {b.board: b.temperature_c for b in boards})
    yield gauge(
        "board_last_message_timestamp_seconds",
        "When the board's worker last spoke, since 1970.",
        {b.board: b.updated_unix_s for b in boards},
    )


def _labels(board: BoardState) -> dict[str, str]:
    return {"gpu": board.board, "name": board.name}


def _one(name: str, text: str, value: float, labels: Mapping[str, str] | None = None) -> Metric:
    samples = (Sample(labels=labels or {}, value=value),) if math.isfinite(value) else ()
    return Metric(name=name, kind="gauge", help=text, samples=samples)


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
