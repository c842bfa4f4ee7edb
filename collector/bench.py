"""A bench: one board with its sensors, its runner and its clock; `open_bench` is the only choice of backend."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from collector.boards import REPLAYED, SIMULATED, no_gpu
from collector.devices.board_runner import open_board_runner
from collector.devices.nvml import POWER_POLL_S, open_board
from collector.devices.polling import HostClock
from collector.devices.protocols import Bench, Instruments
from collector.devices.tracer import NOT_TRACED, NoTracer
from collector.errors import DeviceError, DriverError
from collector.pmd.sensor import open_pmd
from collector.replay.recording import open_recording
from collector.simulated.board import SimulatedBoard
from collector.simulated.profile import Faults, board_names, load_board
from estimator.vocabulary.specifications import is_named, load_gpu


def bench_words() -> tuple[str, ...]:
    """Names of all simulated boards for `open_bench`, sorted."""
    return tuple(f"{SIMULATED}{name}" for name in board_names())


@contextmanager
def open_bench(
    word: str,
    *,
    seed: int = 0,
    meter: bool = False,
    meter_port: str = "",
    faults: Faults | None = None,
    attention: str = "pytorch",
    gpu_spec: str = "",
    trace: bool = True,
    poll_s: float = POWER_POLL_S,
) -> Iterator[Bench]:
    """Open the board that a `--gpu` word names, and restore its state at the end.

    `sim:PROFILE` is a simulated board, PROFILE a name in `configs/simulated-boards` or a TOML file; `seed` determines all its
    random numbers, `meter` puts an external power meter into its supply lines, `faults` switches planted faults on.

    `replay:FILE` answers from a recorded run, with the recorded random numbers and meter.  Any other word names a real board: an NVML
    index, a UUID or a PCI address; `seed` then determines the contents of its kernels' operands, `meter_port` is the serial port of an
    external meter in its supply lines, `attention` the backend of PyTorch that computes attention, and `gpu_spec` names its specification
    or a file with one, "" for the shipped one; `poll_s` is the time between two readings of its power.
    Without `trace` nothing reports the kernels that ran.

    Raises DriverError without an NVIDIA driver, SpecificationError and BoardProfileError for a specification or a profile that
    cannot be used, DeviceError for an unknown word.
    """
    if gpu_spec and word.startswith((REPLAYED, SIMULATED)):
        raise DeviceError(f"--gpu-spec {gpu_spec}: {word} brings its own specification; leave the option out")
    if word.startswith(REPLAYED):
        with open_recording(Path(word.removeprefix(REPLAYED))) as recorded:
            yield Bench(**recorded)
        return
    with _opened(word, seed, meter, meter_port, faults, poll_s, trace) as instruments:
        if isinstance(instruments, Bench):
            yield instruments
            return
        identity = instruments.gpu.identity()
        if not (gpu_spec or identity.canonical_name):
            raise DeviceError(f"{identity.name} has no specification; write one, and name it: --gpu-spec FILE (docs/how-to/add-a-gpu.md)")
        spec = load_gpu(gpu_spec or identity.canonical_name)
        if not is_named(spec, identity.name):
            raise DeviceError(f"--gpu-spec {gpu_spec} is of {', '.join((spec.name, *spec.product_names))}; this board is {identity.name}")
        tracer, now_ns = None if trace else NoTracer(NOT_TRACED), instruments.clock.now_ns
        with open_board_runner(identity.pci_address, spec, now_ns, seed=seed, attention=attention, tracer=tracer) as runner:
            devices: dict[str, Any] = {one.name: getattr(instruments, one.name) for one in fields(Instruments)}
            yield Bench(runner=runner, gpu_spec=spec, **devices)


@contextmanager
def open_instruments(word: str, *, seed: int = 0) -> Iterator[Instruments]:
    """The instruments of the board that a `--gpu` word names; on a real board nothing is run and no context is made, a simulated one is
    a whole bench.

    Raises the errors of `open_bench`, and DeviceError for a recording, which has only the recorded answers.
    """
    if word.startswith(REPLAYED):
        raise DeviceError(f"--gpu {word}: a program cannot be run on a recording; name a board, or sim:PROFILE")
    with _opened(word, seed) as instruments:
        yield instruments


@contextmanager
def _opened(
    word: str,
    seed: int,
    meter: bool = False,
    meter_port: str = "",
    faults: Faults | None = None,
    poll_s: float = POWER_POLL_S,
    trace: bool = True,
) -> Iterator[Instruments]:
    """The instruments of a board; of a simulated one the whole bench."""
    if word.startswith(SIMULATED):
        with open_simulated(word.removeprefix(SIMULATED), seed=seed, faults=faults) as board:
            board.runner.tracing = trace
            yield Bench(
                word=word,
                gpu=board.gpu,
                sensors=(board.sensor, board.meter) if meter else (board.sensor,),
                clock=board.clock,
                simulated=True,
                planted_energy_j=board.true_energy_j,
                runner=board.runner,
                gpu_spec=board.world.gpu,
            )
        return
    try:
        with ExitStack() as stack:
            real = stack.enter_context(open_board(word, poll_s))
            meters = (stack.enter_context(open_pmd(meter_port)),) if meter_port else ()
            others = ", ".join(map(str, real.compute_processes or ()))
            notes = (f"other processes compute on this board ({others}); their power is measured too",) if others else ()
            yield Instruments(
                word=word,
                gpu=real.gpu,
                sensors=(real.sensor, *meters),
                clock=HostClock(),
                simulated=False,
                notes=(*notes, *real.sensor.notes),
            )
    except DriverError as error:
        raise no_gpu(word, error) from error


@contextmanager
def open_simulated(profile: str, *, seed: int = 0, faults: Faults | None = None) -> Iterator[SimulatedBoard]:
    """A simulated board with access to its planted truth; its clock is given back at the end.

    Raises BoardProfileError for a profile that cannot be used.
    """
    planted = load_board(profile)
    board = SimulatedBoard(planted if faults is None else replace(planted, faults=faults), seed)
    try:
        yield board
    finally:
        board.gpu.unlock_clock()
