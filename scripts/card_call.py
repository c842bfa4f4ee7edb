"""One call on a lent card: its remaining time, processes that end in time, and results in pieces for transport."""

import ctypes
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

SPARE_S: Final = 45.0
"""Time of a call that no measurement gets [s]: 30 s of imports and context before it, ending and packing after it."""

GRACE_S: Final = 12.0
"""Time for a process to end after an interruption [s]."""

NO_TIME: Final = "no time is left in this call"
ENDED: Final = "exit status"
LOOK_S: Final = 0.25
PACK_S: Final = 60.0
"""Time between two packings while a process runs [s]: what a call loses that is ended from outside."""
LOG_SUFFIX: Final = ".log.jsonl"
"""End of the name of an unfinished dataset's log (collector.dataset.reader, which needs pyarrow; unpacking does not)."""
GOOD: Final = (0, 3)
"""Exit statuses of what is done; 3 is done with warnings."""
SHOWN_LINES: Final = 12


@dataclass(slots=True)
class Call:
    """A call of `call_s` seconds that works in `folder`; `environment` is that of its processes, `out` takes the pieces of its results.

    `simulated_s` is the time that a rehearsal would have needed on a card, `packed_s` when the results were last packed.
    """

    folder: Path
    call_s: float
    environment: Mapping[str, str]
    began_s: float
    out: Path | None = None
    simulated_s: float = 0.0
    packed_s: float = 0.0

    def left_s(self) -> float:
        """Time that is left of the call [s]."""
        return self.call_s - (time.monotonic() - self.began_s) - self.simulated_s

    def run(self, name: str, command: Sequence[str], limit_s: float, stall_s: float = math.inf) -> str:
        """Runs a command, its result in `name`.json, the rest in `name`.log; returns "" or why it is not done.

        It is interrupted after `limit_s` and at the end of the call, and killed as soon as it writes nothing for `stall_s`.
        """
        limit_s = min(limit_s, self.left_s() - GRACE_S)
        if limit_s <= 0:
            return NO_TIME
        click.echo(f"== {name}, {limit_s:.0f} s at most: {' '.join(command)}")
        log = self.folder / f"{name}.log"
        earlier = log.stat().st_size if log.exists() else 0
        with (self.folder / f"{name}.json.part").open("wb") as out, log.open("ab") as errors:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=errors,
                    env=dict(self.environment),
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            except OSError as error:
                return f"{command[0]} cannot be started ({error.strerror or error})"
            try:
                why = self._watched(process, time.monotonic() + limit_s, stall_s)
            except KeyboardInterrupt:
                _end(process)
                raise
        (self.folder / f"{name}.json.part").replace(self.folder / f"{name}.json")
        lines = log.read_bytes()[earlier:].decode(errors="replace").splitlines()
        click.echo("\n".join(lines[-SHOWN_LINES:]))
        if not why and process.returncode not in GOOD:
            why = ": ".join([f"{ENDED} {process.returncode}", *lines[-1:]])
        return why

    def _watched(self, process: subprocess.Popen[bytes], end_s: float, stall_s: float) -> str:
        """Waits for a process; returns why it was ended, "" where it ended itself."""
        written, since_s = self._written(), time.monotonic()
        while process.poll() is None:
            time.sleep(LOOK_S)
            now_s, found = time.monotonic(), self._written()
            if found != written:
                written, since_s = found, now_s
            if now_s - self.packed_s > PACK_S:
                self.pack()
            if now_s - since_s > stall_s:
                kill(process)  # a hang: an orderly end would clear the kernel of suspicion
                return f"nothing written for {stall_s:g} s"
            if now_s > end_s:
                _end(process)
                return "time limit"
        return ""

    def pack(self) -> None:
        """Writes the results so far as pieces; results that cannot be packed cost no stage."""
        if self.out is not None:
            try:
                pack(self.folder, self.out)
            except (OSError, subprocess.CalledProcessError) as error:
                click.echo(f"== results cannot be packed into {self.out}: {error}")
        self.packed_s = time.monotonic()

    def _written(self) -> dict[Path, int]:
        """When each result was written [ns]; none of them while a process replaces one."""
        with suppress(FileNotFoundError):
            return {path: path.stat().st_mtime_ns for path in self.folder.iterdir()}
        return {}


def _end_with_parent() -> None:
    """Has the kernel kill this process when its parent ends (prctl, PR_SET_PDEATHSIG): left alone it would go on and lock its dataset."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts a process and its children, and kills them where they go on."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and its children; one that the driver holds until its kernel ends is left behind, the call goes on."""
    os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)


def pack(folder: Path, target: Path) -> None:
    """Writes all results of a folder as pieces into a new folder of another one, and removes the earlier ones.  Raises CalledProcessError.

    Files may grow meanwhile (tar's status 1).  A call that is killed at any moment leaves whole pieces behind, of this packing or the last.
    """
    partial = target / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    with TemporaryDirectory() as new:
        _shell('{ tar -czf - -C "$0" . || [ $? = 1 ]; } | split -b 15m -d - "$1/results.tar.gz."', folder, Path(new))
        shutil.copytree(new, partial)
    earlier = list(target.glob("results-*"))
    partial.rename(target / f"results-{time.time_ns()}")
    for one in earlier:
        shutil.rmtree(one)


def unpack(pieces: Path, folder: Path) -> None:
    """Unpacks the newest pieces in a folder into another one, which keeps its other files.  Raises CalledProcessError.

    A log from an earlier call goes where its dataset came back without one: it would be resumed, and fitted, in the dataset's place.
    """
    newest = max(pieces.glob("results-*"), default=pieces)
    with TemporaryDirectory() as new:
        _shell('cat "$0"/results.tar.gz.* | tar -xzf - -C "$1"', newest, Path(new))
        for came in Path(new).glob("*.parquet"):
            if not (Path(new) / f"{came.name}{LOG_SUFFIX}").exists():
                (folder / f"{came.name}{LOG_SUFFIX}").unlink(missing_ok=True)
        shutil.copytree(new, folder, dirs_exist_ok=True)


def _shell(line: str, *arguments: Path) -> None:
    subprocess.run(["bash", "-c", f"set -eo pipefail; {line}", *map(str, arguments)], check=True, stderr=subprocess.PIPE)


def child_environment(root: Path, site: Path) -> dict[str, str]:
    """Environment of a stage's processes: this tree, the wheels that travelled, CUDA's programs."""
    path = f"{os.environ.get('PATH', os.defpath)}:{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin"
    python = f"{root}:{site}:{os.environ.get('PYTHONPATH', '')}"
    return {"OMP_NUM_THREADS": "4", **os.environ, "PATH": path, "PYTHONPATH": python.rstrip(":"), "PYTHONUNBUFFERED": "1"}
