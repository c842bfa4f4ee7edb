"""Recording a bench: every call across the hardware edge with its answer, into one compressed file."""

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

from collector.bench import Bench
from collector.devices.protocols import EnergyReading, GpuIdentity, GpuState, LaunchRecord, PowerReadings, PreparedKernel, StateReadings
from collector.errors import CollectorError, DeviceError
from collector.replay.values import FORMAT, FORMAT_VERSION, plain, plain_error, sealed
from estimator.regular_files import open_regular
from estimator.specifications import document_of_gpu
from estimator.workload import Operator
from microbench.copy_load import CopyLoad
from microbench.generated_load import GeneratedLoad

COMPRESSION: Final = 6


class Recorder:
    """Writes calls and answers, one line each; made by `recorded_bench`."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, line: dict[str, Any]) -> None:
        """Append one line."""
        self._file.write(sealed(line))

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


class RecordedClock:
    """A clock whose calls are recorded; implements Clock."""

    def __init__(self, recorder: Recorder, clock: Any) -> None:
        self._recorder = recorder
        self._clock = clock

    def now_ns(self) -> int:
        """Monotonic host time [ns]."""
        now: int = self._recorder.call("clock", "now_ns", self._clock.now_ns)
        return now

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._recorder.call("clock", "wait", self._clock.wait, float(seconds))

    def unix_s(self) -> float:
        """Wall time [s since 1970]."""
        wall: float = self._recorder.call("clock", "unix_s", self._clock.unix_s)
        return wall


class RecordedGpu:
    """A board whose calls are recorded; implements Gpu."""

    def __init__(self, recorder: Recorder, gpu: Any) -> None:
        self._recorder = recorder
        self._gpu = gpu

    def identity(self) -> GpuIdentity:
        """Which board it is."""
        identity: GpuIdentity = self._recorder.call("gpu", "identity", self._gpu.identity)
        return identity

    def state(self) -> GpuState:
        """The board now."""
        state: GpuState = self._recorder.call("gpu", "state", self._gpu.state)
        return state

    def read_states(self) -> StateReadings:
        """Every state polled since the last call."""
        states: StateReadings = self._recorder.call("gpu", "read_states", self._gpu.read_states)
        return states

    def supported_clocks_mhz(self) -> tuple[float, ...]:
        """SM clocks that can be locked [MHz]."""
        clocks: tuple[float, ...] = self._recorder.call("gpu", "supported_clocks_mhz", self._gpu.supported_clocks_mhz)
        return clocks

    def lock_clock_mhz(self, sm_clock_mhz: float) -> None:
        """Hold the SM clock."""
        self._recorder.call("gpu", "lock_clock_mhz", self._gpu.lock_clock_mhz, float(sm_clock_mhz))

    def unlock_clock(self) -> None:
        """Give the SM clock back."""
        self._recorder.call("gpu", "unlock_clock", self._gpu.unlock_clock)

    def power_limit_w(self) -> float:
        """The enforced power limit [W]."""
        limit: float = self._recorder.call("gpu", "power_limit_w", self._gpu.power_limit_w)
        return limit

    def voltage_readable(self) -> bool:
        """Whether `state` carries the core voltage."""
        readable: bool = self._recorder.call("gpu", "voltage_readable", self._gpu.voltage_readable)
        return readable


class RecordedSensor:
    """A power sensor whose calls are recorded under a name of its own; implements PowerSensor."""

    def __init__(self, recorder: Recorder, sensor: Any, device: str) -> None:
        self._recorder = recorder
        self._sensor = sensor
        self._device = device

    def name(self) -> str:
        """What the source is."""
        name: str = self._sensor.name()
        return name

    def fields(self) -> tuple[str, ...]:
        """The fields that `read` hands over."""
        found: tuple[str, ...] = self._sensor.fields()
        return found

    def read(self) -> tuple[PowerReadings, ...]:
        """Everything new since the last call."""
        readings: tuple[PowerReadings, ...] = self._recorder.call(self._device, "read", self._sensor.read)
        return readings

    def read_energy(self) -> EnergyReading | None:
        """The energy counter."""
        energy: EnergyReading | None = self._recorder.call(self._device, "read_energy", self._sensor.read_energy)
        return energy


class RecordedRunner:
    """A runner whose calls are recorded; implements KernelRunner."""

    def __init__(self, recorder: Recorder, runner: Any) -> None:
        self._recorder = recorder
        self._runner = runner

    def prepare(self, operator: Operator, l2_state: str = "warm", transpose: str = "") -> PreparedKernel:
        """Choose and set up the kernel for an operator; the natural layout stands in no recording."""
        arguments = (operator, l2_state, *([transpose] if transpose else []))
        prepared: PreparedKernel = self._recorder.call("runner", "prepare", self._runner.prepare, *arguments)
        return prepared

    def prepare_generated(self, load: GeneratedLoad | CopyLoad) -> PreparedKernel:
        """Load a generated kernel; a recording keeps what tells it from others, not its machine code."""
        prepared: PreparedKernel = self._recorder.call(
            "runner", "prepare_generated", lambda *_told: self._runner.prepare_generated(load), *load.told()
        )
        return prepared

    def run(self, prepared: PreparedKernel, launches: int) -> LaunchRecord:
        """Launch it back to back and wait for the end."""
        record: LaunchRecord = self._recorder.call("runner", "run", self._runner.run, prepared, int(launches))
        return record

    def supports(self, operator: Operator, transpose: str = "") -> bool:
        """Whether `prepare` would accept the operator, in a layout of its inputs."""
        arguments = (operator, *([transpose] if transpose else []))
        accepted: bool = self._recorder.call("runner", "supports", self._runner.supports, *arguments)
        return accepted


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
        with open_regular(path) as raw:
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
        "sensors": [{"name": sensor.name(), "fields": list(sensor.fields())} for sensor in bench.sensors],
    }


def _wrapped(bench: Bench, recorder: Recorder) -> Bench:
    return replace(
        bench,
        gpu=RecordedGpu(recorder, bench.gpu),
        sensors=tuple(RecordedSensor(recorder, sensor, f"sensor{index}") for index, sensor in enumerate(bench.sensors)),
        runner=RecordedRunner(recorder, bench.runner),
        clock=RecordedClock(recorder, bench.clock),
    )
