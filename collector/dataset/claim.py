"""Who writes a dataset: one process at a time, on one host or on several that share a folder.

A claim is a small file beside the output that says which process of which host writes.  It comes into being by a hard
link, which one of several wins on every file system, NFS included, where locks of the kernel may reach one host only or
be missing.  A process that was killed leaves its claim: on its own host it is known to be dead, on others by the
age of its claim, which is renewed before every row, in the time of the server and of nobody else.  One that was only taken
for dead finds another's claim in the place of its own when it goes on, and writes no more.
"""

import errno
import json
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path
from typing import Final

from collector.errors import DatasetError
from estimator.regular_files import read_regular

SILENT_S: Final = 3600.0
"""Age of a claim at which a process of another host counts as dead [s]: the longest measured run is a tenth of it."""
BEGINNING_S: Final = 10.0
"""Age at which a claim that is not whole belongs to nobody [s]."""
ATTEMPTS: Final = 20
LARGEST_CLAIM_BYTES: Final = 4096
"""What is longer is no claim; one takes about 200 bytes."""
PROCESS_NUMBERS: Final = range(1, 2**31)
"""What a process's number can be: a C int [1]."""
CLAIM_KINDS: Final = (stat.S_IFREG, stat.S_IFLNK)
"""Kinds of files that may be removed where a writer's have to be; a folder or a pipe is somebody else's."""
NEW_SUFFIX: Final = ".new"
"""A claim that is being written."""
PROBE_SUFFIX: Final = ".now"
"""An empty file that tells a server's time."""
DEAD_SUFFIX: Final = ".dead"
"""A claim that is being taken away."""
NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES})
"""How file systems without hard links say so."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
PROCESS_NAMES: Final = Path("/proc/self/ns/pid")
START_FIELD: Final = 19
"""Place of a process's start among the fields of /proc/PID/stat that follow its name (proc(5), field 22)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A process: its number and start, its host's name, and the start of that machine and the space that give the number a meaning."""

    host: str
    boot: str
    space: str
    pid: int
    started: str
    token: str


class Claim:
    """A dataset that this process writes; made by `claimed`."""

    def __init__(self, output: Path, mine: Writer) -> None:
        self._output = output
        self._path = claim_path(output)
        self._mine = mine

    def renew(self) -> None:
        """Say that the writer lives; a claim that somebody has taken away is put back.

        Raises DatasetError where another process has the claim: it took this one for dead.
        """
        owner = _read(self._path)
        if owner is not None and owner != self._mine:
            raise DatasetError(_overtaken(self._output, owner))
        with suppress(OSError):  # a claim that cannot be renewed is a shorter claim, no reason to lose a row
            if owner is None:
                _placed(self._path, self._mine)
            else:
                os.utime(self._path)


def claim_path(output: Path) -> Path:
    """Where the claim of an output lies."""
    return output.with_name(f".{output.name}.writer")


def is_file_or_link(path: Path) -> bool:
    """Whether a name is a regular file's or a symbolic link's: all else, a folder say, no writer of a dataset has left."""
    return stat.S_IFMT(_mode(path)) in CLAIM_KINDS


def _mode(path: Path) -> int:
    """What kind of thing has a name, as stat(2) says it; 0 where nothing has."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


@contextmanager
def claimed(output: Path) -> Iterator[Claim]:
    """The sole right to write a dataset within a block.

    Raises DatasetError where a living process has it, or something else its claim's name, and OSError where the folder cannot be written.
    """
    path, mine = claim_path(output), _this_process()
    for _ in range(ATTEMPTS):
        if _placed(path, mine):
            break
        if stat.S_IFMT(_mode(path)) not in (0, *CLAIM_KINDS):
            raise DatasetError(f"{path} is in the way of this dataset's claim; remove it")
        owner = _read(path)
        if _alive(owner, path):
            raise DatasetError(_refusal(output, owner, path))
        _set_aside(path, owner)
    else:
        raise DatasetError(f"{output}: another campaign keeps taking this place; name another with --out")
    try:
        _remove_remains(path)
        yield Claim(output, mine)
    finally:
        if _read(path) == mine:
            with suppress(OSError):  # on a disk that fails now; this process is known to be dead then, and what ended the block is told
                path.unlink(missing_ok=True)


def _remove_remains(path: Path) -> None:
    """Remove what processes that were killed while they took or judged a claim have left beside it."""
    for ending in (NEW_SUFFIX, PROBE_SUFFIX, DEAD_SUFFIX):
        for left in path.parent.glob(f"{escape(path.name)}.*{ending}"):
            if is_file_or_link(left) and not _alive(_read(left), left):
                left.unlink(missing_ok=True)


def _refusal(output: Path, owner: Writer | None, path: Path) -> str:
    who = f" (process {owner.pid} on {owner.host})" if owner else ""
    gone = "process" if owner is None or owner.host == socket.gethostname() else "host"
    way_out = f"if that {gone} is gone, remove {path}"
    return f"{output}: another campaign is writing there{who}; wait for it or name another place with --out; {way_out}"


def _overtaken(output: Path, owner: Writer) -> str:
    return (
        f"{output}: process {owner.pid} on {owner.host} writes there now, this one was silent for so long that it counted as dead; "
        "the rows before that are in its dataset"
    )


def _this_process() -> Writer:
    pid = os.getpid()
    boot, space = _text(BOOT_ID), ""
    with suppress(OSError):
        space = os.readlink(PROCESS_NAMES)
    return Writer(host=socket.gethostname(), boot=boot, space=space, pid=pid, started=_start_of(pid) or "", token=secrets.token_hex(8))


def _start_of(pid: int) -> str | None:
    """When a process started, in ticks since the machine did; None where there is no such process, "" where nobody says."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except OSError:
            pass
        return ""
    return None if fields[0] == "Z" else fields[START_FIELD]


def _alive(owner: Writer | None, path: Path) -> bool:
    """Whether the owner of a claim may still be writing; None is one that is just writing its claim, or never finished that."""
    if owner is None:
        return _age_s(path) < BEGINNING_S
    mine = _this_process()
    if owner.host == mine.host and owner.boot != mine.boot:
        return False
    if (owner.host, owner.boot, owner.space) == (mine.host, mine.boot, mine.space):
        started = _start_of(owner.pid)
        return started is not None and (not started or not owner.started or started == owner.started)
    return _age_s(path) < SILENT_S


def _age_s(path: Path) -> float:
    """How long ago a claim was renewed, by the clock of the server that keeps it [s]."""
    probe = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PROBE_SUFFIX}")
    try:
        with probe.open("xb") as stream:
            now_s = os.fstat(stream.fileno()).st_mtime  # of what is open: the claim's owner may remove the name
        return now_s - path.lstat().st_mtime
    except FileNotFoundError:
        return SILENT_S
    finally:
        probe.unlink(missing_ok=True)


def _placed(path: Path, mine: Writer) -> bool:
    """Whether this process has the claim now; False where there is one already.  Raises OSError."""
    beside = path.with_name(f"{path.name}.{mine.token}{NEW_SUFFIX}")
    try:
        beside.write_bytes(json.dumps(asdict(mine)).encode())
        # NFS may lose the answer to a link that was made, ask again and be told that the name is taken: by this claim.
        return _named(beside, path) or _read(path) == mine
    finally:
        beside.unlink(missing_ok=True)


def _named(beside: Path, path: Path) -> bool:
    """Give a claim that lies beside its place its name; False where that is taken.  Raises OSError."""
    try:
        os.link(beside, path, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS or not beside.exists():
            raise
        try:
            with path.open("xb") as stream:
                stream.write(read_regular(beside, LARGEST_CLAIM_BYTES, follow=False))
        except FileExistsError:
            return False
    return True


def _set_aside(path: Path, judged: Writer | None) -> None:
    """Take a dead claim away; one that somebody else has put in its place meanwhile is given back."""
    if not is_file_or_link(path):
        return
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{DEAD_SUFFIX}")
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return
    if _read(aside) != judged:
        with suppress(FileNotFoundError):
            _named(aside, path)
    aside.unlink(missing_ok=True)


def _read(path: Path) -> Writer | None:
    """The owner of a claim; None where there is none, or none that was written whole."""
    try:
        document = json.loads(read_regular(path, LARGEST_CLAIM_BYTES, follow=False))
        pid = int(document["pid"])
        if pid not in PROCESS_NUMBERS:
            return None
        return Writer(
            host=str(document["host"]),
            boot=str(document["boot"]),
            space=str(document["space"]),
            pid=pid,
            started=str(document["started"]),
            token=str(document["token"]),
        )
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
