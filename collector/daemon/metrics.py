"""The daemon's figures for Prometheus: base units, names and labels that stay, text exposition format 0.0.4."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from collector.daemon.jobs import RUNNING, Board, Job, Overview

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

BOARD_GAUGES: Final[dict[str, tuple[str, Callable[[Board], float | None]]]] = {
    "board_power_watts": ("Power of the last row.", lambda board: board.power_w),
    "board_sm_clock_hertz": ("SM clock of the last row.", lambda board: board.sm_clock_mhz and HZ_PER_MHZ * board.sm_clock_mhz),
    "board_temperature_celsius": ("Temperature of the last row.", lambda board: board.temperature_c),
    "board_last_message_timestamp_seconds": ("When the board's worker last spoke, since 1970.", lambda board: board.updated_unix_s),
}
JOB_GAUGES: Final[dict[str, tuple[str, Callable[[Job], float | None]]]] = {
    "job_progress_ratio": ("Share of the running job's points that are finished.", lambda job: job.done / job.total if job.total else None),
    "job_remaining_seconds": ("Time to the running job's end at its pace so far.", lambda job: job.eta_s),
    "job_board_time_seconds": ("The board's time that the running job has used.", lambda job: job.used_s),
}
"""Gauges by board, and those of the job that runs on it; what is not known has no sample."""


class _Figures(Collector):
    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    def collect(self) -> Iterator[Metric]:
        overview, daemon = self._overview, self._overview.daemon
        build = GaugeMetricFamily("wattprint_build_info", "Version of the daemon; the value is 1.", labels=["version"])
        build.add_metric([daemon.version], 1.0)
        yield build
        yield GaugeMetricFamily("wattprint_daemon_start_time_seconds", "When the daemon started, since 1970.", value=daemon.started_unix_s)
        yield GaugeMetricFamily("wattprint_daemon_draining", "1 while the daemon ends.", value=float(daemon.draining))
        jobs = GaugeMetricFamily("wattprint_jobs", "Jobs by state.", labels=["state"])
        for state, count in overview.counts.items():
            jobs.add_metric([state], count)
        yield jobs
        boards = overview.boards
        running = {job.board: job for job in overview.jobs if job.state == RUNNING}
        busy = {board.board: float(board.board in running) for board in boards}
        yield self._by_board(GaugeMetricFamily, "board_busy", "1 while a worker measures on the board.", busy)
        for name, (text, of_board) in BOARD_GAUGES.items():
            yield self._by_board(GaugeMetricFamily, name, text, {board.board: of_board(board) for board in boards})
        for name, (text, of_job) in JOB_GAUGES.items():
            yield self._by_board(GaugeMetricFamily, name, text, {key: of_job(job) for key, job in running.items()})
        for name, text in COUNTERS.items():
            counts = {board.board: overview.counters.get((name, board.board), 0.0) for board in boards}
            yield self._by_board(CounterMetricFamily, f"{name}_total", text, counts)

    def _by_board(
        self, kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, text: str, values: Mapping[str, float | None]
    ) -> Metric:
        family = kind(f"wattprint_{name}", text, labels=["gpu", "name"])
        for board in self._overview.boards:
            if (figure := values.get(board.board)) is not None:
                family.add_metric([board.board, board.name], figure)
        return family


def exposition(overview: Overview) -> bytes:
    """All metrics of an overview as text."""
    return generate_latest(_Figures(overview))
