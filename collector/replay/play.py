"""Playing a recording back: a bench that answers as the recorded one did, to the same calls in the same order."""

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from collector.errors import DeviceError
from collector.replay.values import FORMAT, FORMAT_VERSION, plain, restored, restored_error, unsealed
from estimator.errors import EstimatorError
from estimator.gpu import GpuSpec
from estimator.regular_files import open_regular
from estimator.specifications import gpu_from_document

LONGEST_LINE: Final = 64 * 2**20
"""Characters of one call and its answer: an hour of readings has some 20 million."""

ADVICE: Final = "replay it with the command, the seed and the version that it was recorded with"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a recording says of its bench, before its first call."""

    path: Path
    word: str
    simulated: bool
    gpu_spec: GpuSpec
    sensors: int


class Player:
    """Answers calls from a recording, in its order; made by `open_recording`."""

    def __init__(self, path: Path, lines: Iterator[dict[str, Any]]) -> None:
        self._path = path
        self._lines = lines
        self._number = 1
        self._failure: DeviceError | None = None

    def call(self, device: str, method: str, *arguments: Any) -> Any:
        """The recorded answer, or the recorded error raised.

        Raises DeviceError where the recording has another call here, is damaged or has ended; every later call then raises the same.
        """
        if self._failure is not None:
            raise self._failure
        try:
            answer = self._answer({"device": device, "method": method, **({"arguments": plain(arguments)} if arguments else {})})
        except DeviceError as error:
            self._failure = error
            raise
        if isinstance(answer, DeviceError):
            raise answer
        return answer

    def _answer(self, asked: dict[str, Any]) -> Any:
        """What the next line says of a call, an error of the edge as a value.  Raises DeviceError."""
        self._number += 1
        line = next(self._lines, None)
        call = f"{asked['device']} {asked['method']}"
        if line is None:
            raise DeviceError(f"{self._path}: the recording ends before {call}; {ADVICE}")
        if {key: line[key] for key in asked.keys() | {"arguments"} if key in line} != asked:
            what = f"{line.get('device')} {line.get('method')}"
            differs = "with other arguments " if what == call else ""
            raise DeviceError(f"{self._path}, call {self._number}: recorded was {what}, asked is {call} {differs}here; {ADVICE}")
        try:
            return restored_error(line) if "error" in line else restored(line["answer"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DeviceError(f"{self._path}, call {self._number}: {call} has no usable answer ({error!r})") from error


class Played:
    """Stands for a device of a recording: answers the calls of its protocol as the recorded one did."""

    def __init__(self, player: Player, device: str) -> None:
        self._player = player
        self._device = device

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._player.call, self._device, method)


@contextmanager
def open_recording(path: Path) -> Iterator[tuple[Recording, Player]]:
    """A recording, ready to answer.  Raises DeviceError for a file that is none, is damaged or of a newer format."""
    if path == Path():
        raise DeviceError("--gpu replay: names no file; give replay:FILE, a recording made with --record FILE")
    try:
        raw = open_regular(path)
    except OSError as error:
        raise DeviceError(f"{path}: cannot be read ({error.strerror}); `collect … --record FILE` makes a recording") from error
    with raw, gzip.open(raw, "rt", encoding="utf-8", newline="\n") as file:
        lines = _lines(path, file)
        header = next(lines, None)
        yield _recording(path, header), Player(path, lines)


def _recording(path: Path, header: Mapping[str, Any] | None) -> Recording:
    if header is None or header.get("format") != FORMAT:
        raise DeviceError(f"{path}: no recording; `collect … --record FILE` makes one")
    if header.get("version") != FORMAT_VERSION:
        raise DeviceError(f"{path}: recording of format {header.get('version')!r}, this version reads {FORMAT_VERSION}; record it again")
    try:
        return Recording(
            path=path,
            word=str(header["word"]),
            simulated=bool(header["simulated"]),
            gpu_spec=gpu_from_document(header["gpu_spec"], f"{path}: gpu_spec"),
            sensors=len(header["sensors"]),
        )
    except (KeyError, TypeError, EstimatorError) as error:
        raise DeviceError(f"{path}: the recording's first line is damaged ({error})") from error


def _lines(path: Path, file: Any) -> Iterator[dict[str, Any]]:
    """Lines of the file as tables.  Raises DeviceError for one that is none."""
    number = 0
    while True:
        number += 1
        try:
            text = file.readline(LONGEST_LINE)
            if not text:
                return
            line = unsealed(text)
        except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
            raise DeviceError(f"{path}, line {number}: the recording is damaged or cut off ({error})") from error
        if not isinstance(line, dict):
            raise DeviceError(f"{path}, line {number}: the recording is damaged")
        yield line
