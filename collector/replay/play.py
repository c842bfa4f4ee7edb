"""Playing a recording back: a bench that answers as the recorded one did, to the same calls in the same order."""

import gzip
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from collector.devices.protocols import EnergyReading, GpuIdentity, GpuState, LaunchRecord, PowerReadings, PreparedKernel, StateReadings
from collector.errors import DeviceError
from collector.replay.values import FORMAT, FORMAT_VERSION, plain, restored, restored_error, unsealed
from estimator.errors import EstimatorError
from estimator.gpu import GpuSpec
from estimator.regular_files import open_regular
from estimator.specifications import gpu_from_document
from estimator.workload import Operator
from microbench.copy_load import CopyLoad
from microbench.generated_load import GeneratedLoad

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
    sensors: tuple[tuple[str, tuple[str, ...]], ...]


class Player:
    """Answers calls from a recording, in its order; made by `open_recording`."""

    def __init__(self, path: Path, lines: Iterator[dict[str, Any]]) -> None:
        self._path = path
        self._lines = lines
        self._number = 1
        self._waiting: dict[str, Any] | None = None

    def call(self, device: str, method: str, *arguments: Any) -> Any:
        """The recorded answer.  Raises DeviceError where the recording has another call here, or has ended; and recorded errors."""
        line = self._next()
        asked = {"device": device, "method": method, **({"arguments": plain(arguments)} if arguments else {})}
        if line is None:
            raise DeviceError(f"{self._path}: the recording ends before {device} {method}; {ADVICE}")
        found = {key: line[key] for key in ("device", "method", "arguments") if key in line}
        if found != asked:
            what = f"{line.get('device')} {line.get('method')}"
            differs = "with other arguments " if what == f"{device} {method}" else ""
            raise DeviceError(f"{self._path}, call {self._number}: recorded was {what}, asked is {device} {method} {differs}here; {ADVICE}")
        try:
            if "error" in line:
                raise restored_error(line)
            return restored(line["answer"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DeviceError(f"{self._path}, call {self._number}: {device} {method} has no usable answer ({error!r})") from error

    def call_if_next(self, device: str, method: str) -> None:
        """Pass over a call without an answer, if it is the next one recorded; a torn end may stand where it was."""
        with suppress(DeviceError):
            line = self._next()
            if line is not None and (line.get("device"), line.get("method")) != (device, method):
                self._waiting = line
                self._number -= 1

    def _next(self) -> dict[str, Any] | None:
        """The next line; None at the end."""
        line, self._waiting = self._waiting, None
        self._number += 1
        return next(self._lines, None) if line is None else line


class PlayedClock:
    """The recorded clock; implements Clock."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def now_ns(self) -> int:
        """Monotonic host time of the recording [ns]."""
        now: int = self._player.call("clock", "now_ns")
        return now

    def wait(self, seconds: float) -> None:
        """No time passes."""
        self._player.call("clock", "wait", float(seconds))

    def unix_s(self) -> float:
        """Wall time of the recording [s since 1970]."""
        wall: float = self._player.call("clock", "unix_s")
        return wall


class PlayedGpu:
    """The recorded board; implements Gpu."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def identity(self) -> GpuIdentity:
        """Which board it was."""
        identity: GpuIdentity = self._player.call("gpu", "identity")
        return identity

    def state(self) -> GpuState:
        """The board then."""
        state: GpuState = self._player.call("gpu", "state")
        return state

    def read_states(self) -> StateReadings:
        """Every state polled since the last call."""
        states: StateReadings = self._player.call("gpu", "read_states")
        return states

    def supported_clocks_mhz(self) -> tuple[float, ...]:
        """SM clocks that could be locked [MHz]."""
        clocks: tuple[float, ...] = self._player.call("gpu", "supported_clocks_mhz")
        return clocks

    def lock_clock_mhz(self, sm_clock_mhz: float) -> None:
        """Nothing is held."""
        self._player.call("gpu", "lock_clock_mhz", float(sm_clock_mhz))

    def unlock_clock(self) -> None:
        """Nothing is held; a recording that was cut off may lack the call."""
        self._player.call_if_next("gpu", "unlock_clock")

    def power_limit_w(self) -> float:
        """The enforced power limit [W]."""
        limit: float = self._player.call("gpu", "power_limit_w")
        return limit

    def voltage_readable(self) -> bool:
        """Whether `state` carries the core voltage."""
        readable: bool = self._player.call("gpu", "voltage_readable")
        return readable


class PlayedSensor:
    """A recorded power sensor; implements PowerSensor."""

    def __init__(self, player: Player, device: str, name: str, fields: tuple[str, ...]) -> None:
        self._player = player
        self._device = device
        self._name = name
        self._fields = fields

    def name(self) -> str:
        """What the source was."""
        return self._name

    def fields(self) -> tuple[str, ...]:
        """The fields that `read` hands over."""
        return self._fields

    def read(self) -> tuple[PowerReadings, ...]:
        """Everything new since the last call."""
        readings: tuple[PowerReadings, ...] = self._player.call(self._device, "read")
        return readings

    def read_energy(self) -> EnergyReading | None:
        """The energy counter."""
        energy: EnergyReading | None = self._player.call(self._device, "read_energy")
        return energy


class PlayedRunner:
    """The recorded runner; implements KernelRunner."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def prepare(self, operator: Operator, l2_state: str = "warm", transpose: str = "") -> PreparedKernel:
        """The kernel that was chosen for the operator; the natural layout stands in no recording."""
        prepared: PreparedKernel = self._player.call("runner", "prepare", operator, l2_state, *([transpose] if transpose else []))
        return prepared

    def prepare_generated(self, load: GeneratedLoad | CopyLoad) -> PreparedKernel:
        """The generated kernel that was loaded then; another machine code, from another assembler, is another kernel."""
        prepared: PreparedKernel = self._player.call("runner", "prepare_generated", *load.told())
        return prepared

    def run(self, prepared: PreparedKernel, launches: int) -> LaunchRecord:
        """What came of it."""
        record: LaunchRecord = self._player.call("runner", "run", prepared, int(launches))
        return record

    def supports(self, operator: Operator, transpose: str = "") -> bool:
        """Whether `prepare` accepted the operator, in a layout of its inputs."""
        accepted: bool = self._player.call("runner", "supports", operator, *([transpose] if transpose else []))
        return accepted


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
        raise DeviceError(f"{path}: recording of format {header.get('version')!r}, this version reads {FORMAT_VERSION}; update wattprint")
    try:
        return Recording(
            path=path,
            word=str(header["word"]),
            simulated=bool(header["simulated"]),
            gpu_spec=gpu_from_document(header["gpu_spec"], f"{path}: gpu_spec"),
            sensors=tuple((str(sensor["name"]), tuple(map(str, sensor["fields"]))) for sensor in header["sensors"]),
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
