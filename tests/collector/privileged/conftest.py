"""A clock helper as a real process, on the stand-in for NVML, and raw connections to it."""

import grp
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from collector.privileged.settings import read_settings
from tests.collector.nvml.stub import Boards, board_uuid, built
from tests.collector.steady import DEADLINE_S, until
from tests.processes import ended

UUID, SECOND, UNLISTED = board_uuid(0), board_uuid(1), board_uuid(2)
NAMES = {UUID: "first board", SECOND: "second board", UNLISTED: "unlisted board"}
"""For the names of tests, which must be the same in every process."""

ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""What systemd does with a socket."""


class Place:
    """A helper's surroundings: three boards, two of them allowed, a config, and the processes that were started."""

    def __init__(self, folder, library):
        self.folder = folder
        folder.chmod(0o755)
        self.boards = Boards(folder / "boards", 3)
        self.socket = folder / "s"
        self.audit = folder / "audit.log"
        self.state = folder / "state"
        self.config = folder / "clocks.toml"
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "WATTPRINT_NVML_STUB": str(self.boards.path),
            "WATTPRINT_STATE": str(self.state),
            "WATTPRINT_CLOCKS_SOCKET": str(self.socket),
        }
        for name in ("LISTEN_PID", "LISTEN_FDS", "WATCHDOG_USEC"):
            self.environment.pop(name, None)
        self.processes = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.write_config()

    def write_config(self, *, head="", group=""):
        mine = grp.getgrgid(os.getegid()).gr_name
        self.config.write_text(
            f'group = "{group or mine}"\n{head}\n'
            + "".join(f'[[boards]]\nuuid = "{uuid}"\nlowest_mhz = 510\nhighest_mhz = 1410\n' for uuid in (UUID, SECOND))
        )
        self.config.chmod(0o644)

    def command(self):
        return [sys.executable, "-I", "-m", "collector.privileged.helper", str(self.config)]

    def listen(self):
        """The number of the socket that systemd would pass, for the config's group; it outlives the helper."""
        if not self.socket.exists():
            self.listener.bind(str(self.socket))
            self.listener.listen(128)
            self.socket.chmod(0o660)
        os.chown(self.socket, -1, read_settings(self.config).group_id)
        return self.listener.fileno()

    def start(self, *command, preexec_fn=None):
        """A helper that has told systemd that it is ready."""
        number = self.listen()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            notify = self.folder / "notify"
            notify.unlink(missing_ok=True)
            told.bind(str(notify))
            environment = {**self.environment, "NOTIFY_SOCKET": str(notify)}
            with self.audit.open("a") as stderr:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-c", ACTIVATE, str(number), *(command or self.command())],
                    stderr=stderr,
                    text=True,
                    env=environment,
                    pass_fds=(number,),
                    preexec_fn=preexec_fn,
                )
            self.processes.append(process)
            told.setblocking(False)
            until(lambda: process.poll() is not None or _ready(told))
            assert process.poll() is None, self.audit.read_text()
        return process

    def refused(self):
        """What a helper that does not start says."""
        done = ended(*self.command(), env=self.environment)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        return done.stderr

    def events(self):
        return [json.loads(line) for line in self.audit.read_text().split("\n")[:-1]]  # the last one may still be written

    def end(self):
        for process in self.processes:
            process.kill()
            process.communicate(timeout=DEADLINE_S)
        self.listener.close()


def _ready(told):
    try:
        return b"READY=1" in told.recv(4096)
    except BlockingIOError:
        return False


class Line:
    """A raw connection."""

    def __init__(self, path):
        self.end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.end.settimeout(DEADLINE_S)
        self.end.connect(str(path))

    def send(self, data):
        try:
            self.end.sendall(data)
        except OSError:  # closed meanwhile: what was said before that is still there
            return

    def receive(self):
        """The next reply; None for the end of the connection."""
        came = b""
        while not came.endswith(b"\n"):
            try:
                more = self.end.recv(1)
            except ConnectionResetError:
                return None
            if not more:
                return None
            came += more
        return json.loads(came)

    def request(self, **content):
        self.send(json.dumps({"version": 1, **content}).encode() + b"\n")

    def ask(self, **content):
        self.request(**content)
        reply = self.receive()
        assert reply is not None, "the helper closed the connection"
        return reply

    def lock(self, clock=900, uuid=UUID):
        return self.ask(do="lock", uuid=uuid, sm_clock_mhz=clock)

    def close(self):
        self.end.close()


@pytest.fixture(scope="session")
def nvml(tmp_path_factory):
    return built(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def place(nvml):
    folder = Path(tempfile.mkdtemp(prefix="wp-"))  # a socket's path must be short
    made = Place(folder, nvml)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(folder)


@pytest.fixture
def opened(place):
    lines = []

    def connect():
        lines.append(Line(place.socket))
        return lines[-1]

    yield connect
    for line in lines:
        line.close()


def stopped(process, how=signal.SIGTERM):
    process.send_signal(how)
    process.communicate(timeout=DEADLINE_S)
    return process.returncode
