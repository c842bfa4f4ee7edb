"""Recording a bench: every call across the hardware edge with its answer, into one compressed file."""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from collector.bench import Bench
from collector.errors import CollectorError, DeviceError
from collector.replay.values import FORMAT, FORMAT_VERSION, plain, plain_error
from estimator.specifications import document_of_gpu

COMPRESSION: Final = 6


class Recorder:
    """Writes calls and answers, one line each; made by `recorded_bench`."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, line: dict[str, Any]) -> None:
        """Append one line."""
        self._file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")

    def call(self, device: str, method: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call, write down what came of it, and hand it on; an error of the edge too."""
        line: dict[str, Any] = {"device": device, "method": method}
        if arguments:
            line["arguments"] = plain(arguments)
        try:
            answer = call(*arguments)
        except DeviceError as error:
            self.write({**line, **plain_error(error)})
            raise
        self.write({**line, "answer": plain(answer)})
        return answer


class Recorded:
    """Stands for a device: hands every call of its protocol on, arguments by place, and has it written down with its result."""

    def __init__(self, recorder: Recorder, device: str, target: Any) -> None:
        self._recorder = recorder
        self._device = device
        self._target = target

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._recorder.call, self._device, method, getattr(self._target, method))


@contextmanager
def recorded_bench(bench: Bench, path: Path) -> Iterator[Bench]:
    """The same bench, everything that crosses its edge recorded into `path`.

    The file appears whole at the end, also of a run that failed or was interrupted; until then it lies beside.
    Raises CollectorError for a path that cannot be written, and for a file that is there and no recording.
    """
    if path.is_dir():
        raise CollectorError(f"{path}: cannot be written (Is a directory); name a file in a folder that is there")
    _check_replaceable(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        raw = beside.open("wb")
    except OSError as error:
        raise CollectorError(f"{path}: cannot be written ({error.strerror}); name a file in a folder that is there") from error
    try:
        with raw, gzip.open(raw, "wt", compresslevel=COMPRESSION, encoding="utf-8") as file:
            recorder = Recorder(file)
            recorder.write(_header(bench))
            yield _wrapped(bench, recorder)
    finally:
        os.replace(beside, path)


def _check_replaceable(path: Path) -> None:
    """Raises CollectorError for a file that holds something else than a recording: it is not replaced."""
    if not path.exists():
        return
    try:
        if not path.is_file():
            raise CollectorError(f"{path}: is not a regular file; name another one with --record")
        with path.open("rb") as raw:
            whole = raw.read(len(GZIP_MAGIC))
            raw.seek(0)
            with gzip.open(raw, "rb") as file:
                ours = not whole or (whole == GZIP_MAGIC and FORMAT.encode("ascii") in file.read(HEAD_BYTES))
    except (EOFError, gzip.BadGzipFile, zlib.error):
        ours = False
    except OSError as error:
        raise CollectorError(f"{path}: cannot be read ({error.strerror}); name another file with --record") from error
    if not ours:
        raise CollectorError(f"{path}: is no recording, and nothing else is replaced; remove it, or name another file with --record")


GZIP_MAGIC: Final = b"\x1f\x8b"
"""First bytes of every recording."""

HEAD_BYTES: Final = 200
"""The first line of a recording names its format within so many characters."""


def _header(bench: Bench) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "word": bench.word,
        "simulated": bench.simulated,
        "gpu_spec": document_of_gpu(bench.gpu_spec),
        "sensors": [sensor.name() for sensor in bench.sensors],
    }


def _wrapped(bench: Bench, recorder: Recorder) -> Bench:
    sensors: tuple[Any, ...] = tuple(Recorded(recorder, f"sensor{index}", sensor) for index, sensor in enumerate(bench.sensors))
    devices: dict[str, Any] = {name: Recorded(recorder, name, getattr(bench, name)) for name in ("gpu", "runner", "clock")}
    return replace(bench, sensors=sensors, **devices)
