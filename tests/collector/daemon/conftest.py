"""A small campaign, a state folder, and daemons as real processes that no test leaves behind."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from collector.cli import main
from collector.daemon.jobs import Job
from collector.daemon.store import open_store
from collector.dataset.reader import read_kernel_dataset
from tests.collector.steady import DEADLINE_S, until
from tests.processes import COLLECT, piped

BOARD = "sim:a100-pcie-40gb"
OTHER_BOARD = "sim:rtx-3090"
ENDLESS = 2000
"""Kernels of a campaign that no machine finishes while a test looks at it."""
ATTEMPTS = 20
"""How often a blow is repeated that was to fall in the middle of a job, and came too late on a machine that was held up."""

CAMPAIGN = """
description = "softmax alone, without repetitions"
warmup_s = 0.5
idle_settle_s = 0.5
idle_window_s = 1.0
kernels_per_block = 8
anchor_every = 0

[measurement]
updates = 4
window_s = 0.3
settle_s = 0.2
idle_s = 0.5

[[kernels]]
family = "softmax"
operator = "softmax"
precision = "fp32"
count = COUNT
[kernels.shape]
rows = { low = 64, high = 65536 }
dim = { low = 64, high = 4096 }
"""


@dataclass
class Place:
    """A state folder with its config, and what runs there."""

    folder: Path
    sensor: Path
    environment: dict[str, str]
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def config(self):
        return self.folder / "daemon.toml"

    @property
    def state(self):
        return self.folder / "state"

    def configure(self, *boards, **settings):
        """Write the config."""
        values = {"state_folder": "state", "gpus": list(boards or (BOARD,)), "retry_s": 0.1, "retries": 3, **settings}
        self.config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))

    def campaign(self, count, name="tiny.toml"):
        """A campaign of so many kernels."""
        path = self.folder / name
        path.write_text(CAMPAIGN.replace("COUNT", str(count)))
        return str(path)

    def submit(self, campaign, out, *more):
        """Queue a job at one clock; its number."""
        words = f"submit {campaign} --gpu {BOARD} --freqs 900 --out {self.folder / out} --config {self.config} --sensor {self.sensor} -q"
        assert main([*words.split(), *more]) == 0
        return max(job.id for job in self.overview().jobs)

    def queue(self, campaign, out, *, board=BOARD, **changes):
        """Queue a job at one clock without the checks of `submit`, which take a process each; its number."""
        sensor = {BOARD: ("--sensor", str(self.sensor)), OTHER_BOARD: ("--sensor", "rtx-3090")}.get(board, ())
        request = Job(
            board=board,
            campaign=campaign,
            title=Path(campaign).stem,
            arguments=("--freqs", "900", *sensor),
            out=str(self.folder / out),
        )
        with open_store(self.state) as store:
            return store.submit(replace(request, **changes))

    def start(self):
        """A daemon that runs."""
        process = self.process("daemon", "--config", str(self.config))
        until(lambda: self.overview().running or process.poll() is not None, "the daemon starts")
        assert process.poll() is None, process.communicate()[1]
        until(lambda: self.overview().daemon.pid == process.pid, "the daemon has written who it is")
        return process

    def process(self, *words):
        """A `collect` of its own."""
        process = piped(*COLLECT, *words, env=self.environment, cwd=self.folder)
        self.processes.append(process)
        return process

    def overview(self):
        with open_store(self.state) as store:
            return store.overview()

    def job(self, number):
        with open_store(self.state) as store:
            return store.job(number)

    def wait_until(self, number, there, what):
        """A job, queued or running, once something holds of it, which may pass at any time."""

        def seen():
            job = self.job(number)
            assert there(job) or job.state in ("queued", "running"), f"{job.state}: {job.message}"
            return job if there(job) else None

        return until(seen, f"job {number} {what}")

    def wait_for(self, number, state):
        """A job once it is in a state."""
        return self.wait_until(number, lambda job: job.state == state, state)

    def worker_of(self, number, *, other_than=0):
        """The process of a job's worker, once there is one: a number that may be signalled."""
        return self.wait_until(number, lambda job: job.pid not in (0, other_than), "is measured").pid

    def waiting(self, number, cause):
        """A job as it was while it waited for a cause: it is begun again at any time."""
        return self.wait_until(number, lambda job: job.cause == cause, f"waits: {cause}")

    def end(self, process):
        """End a daemon in order; its stderr."""
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
        assert "Traceback" not in err
        return err

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for worker in workers(self.folder):  # also one that a test has stopped
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        until(lambda: not workers(self.folder), "the workers have ended")


def workers(folder):
    """Processes whose command line names a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--worker" in words and any(str(folder).encode() in word for word in words):
                found.append(int(entry.name))
    return found


def row_ids(path):
    """The ids of the rows of a dataset, sorted."""
    return sorted(read_kernel_dataset(path).table.column("row_id").to_pylist())


@pytest.fixture
def place(tmp_path, sensor_file, repository):
    changes = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(repository), "WATTPRINT_STATE": str(tmp_path / "clocks")}
    kept = {name: value for name, value in os.environ.items() if name not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATTPRINT_CONFIG")}
    there = Place(folder=tmp_path, sensor=sensor_file, environment={**kept, **changes})
    there.configure()
    yield there
    there.close()
