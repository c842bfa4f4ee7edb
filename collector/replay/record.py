"""Recording a bench: every call across the hardware edge with its answer, into one compressed file."""

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from collector.bench import Bench
from collector.errors import DeviceError
from collector.replay.values import FORMAT, FORMAT_VERSION, plain, plain_error, sealed
from estimator.specifications import document_of_gpu
from estimator.whole_file import open_whole

COMPRESSION: Final = 6


class Recorder:
    """Writes calls and answers, one line each; made by `recorded_bench`."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.launched = False

    def write(self, line: dict[str, Any]) -> None:
        """Append one line."""
        self._file.write(sealed(line))

    def call(self, device: str, method: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call, write down what came of it, and hand it on; an error of the edge too."""
        line: dict[str, Any] = {"device": device, "method": method}
        self.launched = self.launched or method == "run"
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

    The file appears whole at the end, also of a run that failed or was interrupted; one that is there already stays where a run fails
    before its first kernel.  Raises UnwrittenError for a path that cannot be written.
    """
    failure = None
    with open_whole(path) as raw, gzip.open(raw, "wt", compresslevel=COMPRESSION, encoding="utf-8") as file:
        recorder = Recorder(file)
        recorder.write(_header(bench))
        try:
            yield _wrapped(bench, recorder)
        except BaseException as error:
            if path.exists() and not recorder.launched:
                raise
            failure = error
    if failure is not None:
        raise failure


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
