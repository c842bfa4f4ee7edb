"""What lies at an output: enough to tell later whether it is still the same."""

from pathlib import Path

from collector.devices.errors import CollectorError


def traces_at(out: Path) -> str:
    """Which file lies at an output and which log beside it: their numbers and times, "-" for none."""
    from collector.dataset.log import log_path  # brings Arrow, which a daemon does without

    found = []
    for path in (out, log_path(out)):
        try:
            status = path.stat()
            found.append(f"{status.st_ino}:{status.st_mtime_ns}")
        except OSError:
            found.append("-")
    return " ".join(found)


def check_unused(out: Path, resume: bool | None) -> None:
    """Raises CollectorError where something lies at an output and nobody said whether to replace it or to go on with it.

    Where it shall be replaced, for what is no dataset.
    """
    from collector.dataset.log import log_path
    from collector.dataset.reader import check_replaceable

    if resume is False:
        check_replaceable(out)

    log = log_path(out)
    if resume is None and log.is_file():
        raise CollectorError(f"{out}: an unfinished campaign lies there ({log}); --resume goes on with it, --fresh starts again")
    if resume is None and out.exists():
        raise CollectorError(f"{out} exists; --fresh replaces it, --resume adds what is missing, --out names another file")
