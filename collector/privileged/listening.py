"""The clock helper's socket: passed by the service manager, or made with 0660 and a group; never reachable from other machines."""

import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from collector.devices.clock_helper import socket_path
from collector.errors import PrivilegedError
from collector.privileged.settings import HelperSettings, check_folder


@contextmanager
def listening(settings: HelperSettings, environment: Mapping[str, str], where: str) -> Iterator[socket.socket]:
    """A listening socket, within the block.  Raises PrivilegedError if none is available, or another helper is running."""
    if environment.get("LISTEN_PID") == str(os.getpid()) and environment.get("LISTEN_FDS", "0") != "0":
        with _passed(environment, settings.group_id, where) as listener:
            yield listener
        return
    path = socket_path()
    with _made(path, settings.group_id, where) as listener:
        made = path.lstat().st_ino
        try:
            yield listener
        finally:
            with suppress(OSError):
                if path.lstat().st_ino == made:
                    path.unlink()


def _passed(environment: Mapping[str, str], group: int, where: str) -> socket.socket:
    """The service manager's socket."""
    try:
        listener = socket.socket(fileno=3)  # number of the first descriptor that a service manager passes (sd_listen_fds(3))
        alone = environment["LISTEN_FDS"] == "1" and listener.family == socket.AF_UNIX and listener.type == socket.SOCK_STREAM
        listens = alone and bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        status = os.stat(listener.getsockname()) if listens else None
    except (OSError, TypeError) as error:
        raise PrivilegedError(f"{where}: the service manager handed over no socket: {error}") from error
    if status is None or status.st_mode & stat.S_IRWXO or status.st_gid != group:
        raise PrivilegedError(f"{where}: the service manager must hand over one listening Unix socket for the config's group alone")
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener


def _made(path: Path, group: int, where: str) -> socket.socket:
    """A socket of our own; until it has its group, no other user may reach it."""
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise PrivilegedError(f"{where}: socket: {path.parent} cannot be made ({error.strerror})") from error
    check_folder(path.parent, where)
    _remove_stale(path, where)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o777 & ~0o600)
    try:
        listener.bind(str(path))
        os.chown(path, -1, group)
        path.chmod(0o660)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise PrivilegedError(f"{where}: socket {path}: {error.strerror or error}") from error
    finally:
        os.umask(mask)
    return listener


def _remove_stale(path: Path, where: str) -> None:
    """Removes the socket of a killed helper; only a refused connection proves that no process serves it.  Raises PrivilegedError."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise PrivilegedError(f"{where}: {path} is there and no socket; remove it, or name another socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.settimeout(2.0)
            end.connect(str(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    except OSError as error:
        raise PrivilegedError(f"{where}: {path} cannot be looked at ({error.strerror or error})") from error
    raise PrivilegedError(f"{where}: another helper serves at {path}")
