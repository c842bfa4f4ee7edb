"""Recording of all calls across the hardware edge with their answers, and playback: a run on a real board becomes a test.

A recording is a gzip file of JSON lines: a header, then a line for each call.  Columns of whole numbers are stored as their first value
and differences, columns of other numbers as the shortest texts that restore them to the bit.
"""

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from collector.devices.protocols import (
    EnergyReading,
    GpuIdentity,
    GpuState,
    LaunchRecord,
    PowerReadings,
    PreparedKernel,
    StateReadings,
)
from collector.errors import BoardLostError, ClockError, DeviceError, RunnerError
from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.regular_files import open_regular
from estimator.vocabulary.specifications import document_of_gpu, gpu_from_document
from estimator.vocabulary.values import frozen
from estimator.vocabulary.whole_file import open_whole
from estimator.vocabulary.workload import Operator
from microbench.loads.generated import Load

FORMAT: Final = "wattprint-recording"
FORMAT_VERSION: Final = 3
LONGEST_LINE: Final = 64 * 2**20
"""Greatest length of one call and its answer [characters]: an hour of readings has some 20 million."""

ADVICE: Final = "replay it with the command, the seed and the version that it was recorded with"
DEVICES: Final = ("gpu", "runner", "clock")

VALUES: Final[dict[str, type]] = {
    value.__name__: value
    for value in (EnergyReading, GpuIdentity, GpuState, LaunchRecord, Operator, PowerReadings, PreparedKernel, StateReadings)
}
"""Dataclasses that are stored by the names of their fields."""

ERRORS: Final[dict[str, type[DeviceError]]] = {error.__name__: error for error in (RunnerError, ClockError, BoardLostError, DeviceError)}
"""Errors of the edge, the most specific first."""

STAYING: Final = frozenset({"growth"})
"""Fields that no device reads: the growth of an operator with its workload."""


@frozen
class Proxy:
    """Replaces a device: passes each call of its protocol, with the arguments by place, to `call` of a recorder or a player."""

    call: Callable[..., Any]
    device: str

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self.call, self.device, method)


def _proxies(call: Callable[..., Any], sensors: int) -> dict[str, Any]:
    """Proxies for the devices of a bench, by the bench's fields."""
    named = {name: Proxy(call=call, device=name) for name in DEVICES}
    return {**named, "sensors": tuple(Proxy(call=call, device=f"sensor{index}") for index in range(sensors))}


@contextmanager
def recorded_bench(bench: Any, path: Path) -> Iterator[Any]:
    """The same `collector.bench.Bench`, with all calls across its edge recorded into `path`.

    The file appears complete at the end, also of a failed or interrupted run.  A run that fails before its first kernel
    writes none.  Raises UnwrittenError for a path that cannot be written.
    """
    failure, launched = None, False
    devices = {name: getattr(bench, name) for name in DEVICES} | {f"sensor{i}": sensor for i, sensor in enumerate(bench.sensors)}
    with open_whole(path) as raw, gzip.open(raw, "wt", compresslevel=6, encoding="utf-8") as file:

        def call(device: str, method: str, *arguments: Any) -> Any:
            """Calls a device, writes down the answer or the error of the edge, and passes it on."""
            nonlocal launched
            launched = launched or method == "run"
            line = _called(device, method, arguments)
            try:
                answer = getattr(devices[device], method)(*arguments)
            except DeviceError as error:
                name = next(name for name, kind in ERRORS.items() if isinstance(error, kind))
                _write(file, {**line, "error": name, "message": str(error)})
                raise
            _write(file, {**line, "answer": plain(answer)})
            return answer

        about = {"word": bench.word, "simulated": bench.simulated, "gpu_spec": document_of_gpu(bench.gpu_spec)}
        _write(file, {"format": FORMAT, "version": FORMAT_VERSION, **about, "sensors": len(bench.sensors)})
        try:
            yield replace(bench, **_proxies(call, len(bench.sensors)))
        except BaseException as error:
            if not launched:
                raise
            failure = error
    if failure is not None:
        raise failure


def _called(device: str, method: str, arguments: tuple[Any, ...]) -> dict[str, object]:
    return {"device": device, "method": method, **({"arguments": plain(arguments)} if arguments else {})}


def _write(file: IO[str], line: Mapping[str, object]) -> None:
    file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")


@dataclass(slots=True)
class Player:
    """Answers calls from a recording, in its order; made by `open_recording`."""

    path: Path
    lines: Iterator[dict[str, Any]]
    number: int = 1
    failure: DeviceError | None = None

    def __call__(self, device: str, method: str, *arguments: Any) -> Any:
        """The recorded answer, or the recorded error raised.

        Raises DeviceError if the recording has another call here, is damaged or has ended; every later call then raises the same.
        """
        if self.failure is not None:
            raise self.failure
        try:
            answer = self._answer(_called(device, method, arguments))
        except DeviceError as error:
            self.failure = error
            raise
        if isinstance(answer, DeviceError):
            raise answer
        return answer

    def _answer(self, asked: dict[str, object]) -> Any:
        """The answer in the next line, an error of the edge as a value.  Raises DeviceError."""
        self.number += 1
        line = next(self.lines, None)
        call = f"{asked['device']} {asked['method']}"
        if line is None:
            raise DeviceError(f"{self.path}: the recording ends before {call}; {ADVICE}")
        if {key: line[key] for key in asked.keys() | {"arguments"} if key in line} != asked:
            recorded = f"{line.get('device')} {line.get('method')}"
            differs = "with other arguments " if recorded == call else ""
            raise DeviceError(f"{self.path}, call {self.number}: recorded was {recorded}, asked is {call} {differs}here; {ADVICE}")
        try:
            return ERRORS[line["error"]](line["message"]) if "error" in line else restored(line["answer"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DeviceError(f"{self.path}, call {self.number}: {call} has no usable answer ({error!r})") from error


@contextmanager
def open_recording(path: Path) -> Iterator[dict[str, Any]]:
    """The recorded bench by its fields, its devices ready to answer.

    Raises DeviceError for a file that is no recording, is damaged or of another format.
    """
    if path == Path():
        raise DeviceError("--gpu replay: names no file; give replay:FILE, a recording made with --record FILE")
    try:
        raw = open_regular(path)
    except OSError as error:
        raise DeviceError(f"{path}: cannot be read ({error.strerror}); `collect … --record FILE` makes a recording") from error
    with raw, gzip.open(raw, "rt", encoding="utf-8", newline="\n") as file:
        lines = _lines(path, file)
        header = next(lines, {})
        yield _bench_fields(path, header, Player(path, lines))


def _bench_fields(path: Path, header: Mapping[str, Any], player: Player) -> dict[str, Any]:
    if header.get("format") != FORMAT:
        raise DeviceError(f"{path}: no recording; `collect … --record FILE` makes one")
    if header.get("version") != FORMAT_VERSION:
        raise DeviceError(f"{path}: recording of format {header.get('version')!r}, this version reads {FORMAT_VERSION}; record it again")
    try:
        gpu_spec = gpu_from_document(header["gpu_spec"], f"{path}: gpu_spec")
        about = {"word": str(header["word"]), "simulated": bool(header["simulated"]), "gpu_spec": gpu_spec}
        return about | _proxies(player, int(header["sensors"]))
    except (KeyError, TypeError, ValueError, EstimatorError) as error:
        raise DeviceError(f"{path}: the recording's first line is damaged ({error})") from error


def _lines(path: Path, file: Any) -> Iterator[dict[str, Any]]:
    """Lines of the file as tables.  Raises DeviceError for any other line."""
    while True:
        try:
            text = file.readline(LONGEST_LINE)
            line = json.loads(text) if text else None
        except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
            raise DeviceError(f"{path}: the recording is damaged or cut off ({error})") from error
        if line is None:
            return
        if not isinstance(line, dict):
            raise DeviceError(f"{path}: the recording is damaged")
        yield line


def plain(value: Any) -> Any:
    """A value as JSON data.  Raises TypeError for one that cannot cross the edge."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"number": repr(value)}
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Load):  # the properties that distinguish it from others, not its machine code
        return plain(value.told())
    if isinstance(value, np.ndarray) and value.ndim == 1:
        if np.issubdtype(value.dtype, np.integer):
            return {"whole": np.diff(value, prepend=0).tolist()}
        return {"column": [item if math.isfinite(item) else repr(item) for item in value.astype(np.float64).tolist()]}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if is_dataclass(value) and type(value).__name__ in VALUES:
        crossing = (item.name for item in fields(value) if item.name not in STAYING)
        return {"value": type(value).__name__, **{name: plain(getattr(value, name)) for name in crossing}}
    raise TypeError(f"a {type(value).__name__} does not cross the hardware edge")


def restored(data: Any) -> Any:
    """The value of `plain` data; lists become tuples.  Raises ValueError, TypeError, KeyError for anything else."""
    if isinstance(data, list):
        return tuple(restored(item) for item in data)
    if not isinstance(data, Mapping):
        return data
    if "number" in data:
        return float(data["number"])
    if "whole" in data:
        return np.cumsum(np.array(data["whole"], dtype=np.int64), dtype=np.int64)
    if "column" in data:
        return np.array([float(item) for item in data["column"]], dtype=np.float64)
    kind = VALUES[data["value"]]
    return kind(**{key: restored(item) for key, item in data.items() if key != "value"})
