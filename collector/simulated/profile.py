"""The profile of a simulated board: a TOML file in `configs/simulated-boards`, declared below.

The type of a field states its range: positive, not negative, a share of at most 1, or of either sign.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from collector.errors import BoardProfileError
from estimator.vocabulary.errors import SpecificationError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.reader import LEAST_ONE, Span, Words, check_ascending, check_lengths, read_file
from estimator.vocabulary.resources import resource_folder, resource_names
from estimator.vocabulary.specifications import load_gpu, names_file
from estimator.vocabulary.values import frozen

Figure = Annotated[float, Span(0.0, 1e13)]
Positive = Annotated[float, Span(1e-9, 1e13)]
Signed = Annotated[float, Span(-1e13, 1e13)]
Share = Annotated[float, Span(0.0, 1.0)]
PositiveShare = Annotated[float, Span(1e-9, 1.0)]
Seconds = Annotated[float, Span(0.0, 10.0)]
SignedSeconds = Annotated[float, Span(-10.0, 10.0)]
"""Latencies, gaps and delays; a simulated launch of hours would be polled for hours."""
Period = Annotated[float, Span(1e-4, 1e4)]
"""Periods; a simulated second of shorter ones takes minutes."""
UpdatePeriod = Annotated[float, Span(1e-4, 3.0)]
"""The first update comes within 1.5 s and a period, before anything polls."""
Column = Annotated[tuple[Positive, ...], LEAST_ONE]
TimeConstant = Annotated[float, Span(1e-9, 1e4)]


@frozen
class IdentityProfile:
    """The board's identity, as it reports it."""

    product_name: str
    driver: str
    vbios: str
    pci_address: str
    voltage_readable: bool


@frozen
class EnergyProfile:
    """Planted energy of one event at `reference_voltage_v` [pJ].

    `tensor_pj_per_flop` holds for 16-bit operands; `tensor_precision_factor` multiplies it for others.
    Core events scale with V²; `dram_pj_per_byte` does not.  A padded flop (an operand outside the matrix: zeros)
    costs `padding_share` of a useful one.  `switching_spread` is the standard deviation of the data-dependent
    switching factor around 1.
    """

    reference_voltage_v: Positive
    tensor_pj_per_flop: Figure
    tensor_precision_factor: Mapping[Annotated[str, Words(tuple(BYTES_PER_ELEMENT))], Figure]
    cuda_pj_per_op: Figure
    sfu_pj_per_op: Figure
    shared_pj_per_byte: Figure
    l2_pj_per_byte: Figure
    dram_pj_per_byte: Figure
    padding_share: Share
    switching_spread: Share


@frozen
class PowerProfile:
    """Power that is not tied to events [W].

    At rest: `board_w` (memory, fans, converters), the clock tree `idle_clock_w` at the reference voltage and
    `reference_clock_mhz` (∝ V² f), leakage `leakage_w` at the reference voltage and `leakage_temperature_c`,
    ∝ V^`leakage_voltage_exponent` · exp(ΔT / `leakage_scale_k`).  While a kernel runs: `active_w`, and
    `sm_clock_w` with all SMs busy at the reference voltage and clock (∝ V² f); its `ungated_share` does not
    depend on the number of busy SMs.
    """

    reference_clock_mhz: Positive
    board_w: Figure
    idle_clock_w: Figure
    leakage_w: Figure
    leakage_temperature_c: Signed
    leakage_scale_k: Positive
    leakage_voltage_exponent: Figure
    active_w: Figure
    sm_clock_w: Figure
    ungated_share: Share


@frozen
class ClockProfile:
    """Clocks and voltage.

    `voltage_v` over `sm_clock_mhz`, rounded up to `voltage_step_v`.  Under load the voltage sags by
    `load_line_ohm` times the current, and the clock by `droop_share` at the power limit.  Unlocked, the board
    boosts to `boost_mhz` and rests at `idle_mhz`; above `slowdown_temperature_c` it loses `slowdown_mhz_per_k`.
    """

    boost_mhz: Figure
    idle_mhz: Figure
    sm_clock_mhz: Column
    voltage_v: Column
    voltage_step_v: Positive
    load_line_ohm: Figure
    droop_share: Share
    governor_delay_s: Seconds
    slowdown_temperature_c: Figure
    slowdown_mhz_per_k: Figure

    def __post_init__(self) -> None:
        """Raises FaultError for columns that do not fit each other."""
        check_ascending(self.sm_clock_mhz, "sm_clock_mhz")
        check_lengths({"voltage_v": self.voltage_v}, len(self.sm_clock_mhz))


@frozen
class ThermalProfile:
    """Two thermal masses in series with the surroundings: the die and its sink."""

    ambient_c: Signed
    die_k_per_w: Figure
    die_time_s: TimeConstant
    sink_k_per_w: Figure
    sink_time_s: TimeConstant


@frozen
class MemoryProfile:
    """The memory path.

    `dram_share` and `l2_share` are the reachable shares of the published bandwidths, `path_bytes_per_clock` the
    port between an SM and the L2.  Unloaded latencies `l2_latency_clocks` and `dram_latency_s` grow with the
    load by `dram_queue_s` and `path_queue_clocks` (u / (1 − u)).  An SM keeps `outstanding_bytes` in flight.
    `l2_usable_share` of the L2 keeps its lines; `l2_edge` is the sharpness of their eviction.
    """

    dram_share: PositiveShare
    l2_share: PositiveShare
    path_bytes_per_clock: Positive
    l2_latency_clocks: Figure
    dram_latency_s: Seconds
    dram_queue_s: Seconds
    path_queue_clocks: Figure
    outstanding_bytes: Positive
    l2_usable_share: PositiveShare
    l2_edge: Figure


@frozen
class ScheduleProfile:
    """Blocks and launches.

    `dispatch_clocks` per block, `block_start_clocks` before a block's first instruction, `sm_spread` between
    SMs and `block_spread` between blocks (relative standard deviations).  A launch costs the host
    `host_launch_s`, leaves a gap `launch_gap_s` on the GPU, starts `launch_lag_s` after the host's stamp, and
    has run-to-run and within-run relative spreads.
    """

    dispatch_clocks: Figure
    block_start_clocks: Figure
    sm_spread: Share
    block_spread: Share
    host_launch_s: Seconds
    launch_gap_s: Seconds
    launch_lag_s: Seconds
    run_spread: Share
    segment_spread: Share


@frozen
class LibraryProfile:
    """The simulated vendor library: its kernel sets, their use of the matrix units, and its choice.

    Its costs of a kernel deviate by `liking_spread` for all shapes alike and by `choice_spread` from one neighbourhood of
    shapes to the next (standard deviations of the logarithm).
    """

    generation: Literal["volta", "ampere", "hopper"]
    tensor_efficiency: Positive
    cuda_efficiency: Positive
    stream_path_share: PositiveShare
    choice_spread: Share
    liking_spread: Share


@frozen
class TransientProfile:
    """Board power after a change of the silicon's power: shares that lag by time constants, the rest within `fast_time_s`."""

    fast_time_s: TimeConstant
    slow_share: Share
    slow_time_s: TimeConstant
    creep_share: Share
    creep_time_s: TimeConstant


@frozen
class SensorProfile:
    """The board's power sensor.

    `kind` boxcar (width `window_s`) or low-pass (`window_s` = 2τ).  `clock` rigid (update k at φ + kT + jitter +
    slow wander) or renewal (jitter adds up).  `average_slots` updates form the trailing mean of the "average" field
    (0: no such field).
    """

    kind: Literal["boxcar", "low-pass"]
    window_s: Annotated[float, Span(1e-9, 10.0)]
    update_period_s: UpdatePeriod
    clock: Literal["rigid", "renewal"]
    jitter_s: Seconds
    wander_s: Seconds
    wander_period_s: Period
    delay_s: SignedSeconds
    gain: Positive
    offset_w: Signed
    noise_w: Figure
    quantum_w: Positive
    skip_share: Share
    average_slots: Annotated[int, Span(0, 10_000)]
    average_weight: Figure
    poll_period_s: Period
    poll_spread_s: Seconds


@frozen
class Link:
    """A link beyond the board: rate of payload in one direction, latency of a word, and this board's energy for each byte."""

    bytes_per_s: Positive
    latency_s: Seconds
    pj_per_byte: Figure


@frozen
class Faults:
    """Effects that are switched on to test their detection.  All off by default.

    In `stale_share` of the runs the sensor is frozen for their whole length; `throttle_share` run at a lower clock because of a hot
    neighbour.  Generated kernels whose names are in `corrupted` (separated by spaces) return wrong results; those in `kills` break the
    context.  Beside `foreign_share` of the runs another process computes on the board: it draws power and slows the run.
    `hidden_pj_per_byte` is the energy of a module outside all tables: it works on every byte of kernels whose row pitch is a multiple of
    `hidden_pitch_bytes`, and slows these by `hidden_slowdown`.

    As on a lent card: the power limit takes hold with the time constant `limit_lag_s`, a call of the driver takes up to `call_s`, opening
    the board takes `startup_s`, generated kernels in `hangs` never end, and the trace of `late_trace_share` of the library's kernels comes
    too late.
    """

    stale_share: Share = 0.0
    throttle_share: Share = 0.0
    foreign_share: Share = 0.0
    hidden_pj_per_byte: Figure = 0.0
    hidden_pitch_bytes: Positive = 4096.0
    hidden_slowdown: Figure = 0.0
    corrupted: str = ""
    kills: str = ""
    hangs: str = ""
    limit_lag_s: Seconds = 0.0
    call_s: Seconds = 0.0
    startup_s: Figure = 0.0
    late_trace_share: Share = 0.0


@frozen
class BoardProfile:
    """A simulated board: the GPU's name in `configs/gpus` and its planted physics.

    `name` is the file's name by default; `link` has the links to the "host" over PCI Express, and to a "peer" if there is another board.
    """

    name: str = ""
    gpu: str
    identity: IdentityProfile
    energy: EnergyProfile
    power: PowerProfile
    clock: ClockProfile
    thermal: ThermalProfile
    memory: MemoryProfile
    schedule: ScheduleProfile
    library: LibraryProfile
    transient: TransientProfile
    sensor: SensorProfile
    link: Mapping[str, Link] = field(default_factory=dict)
    faults: Faults = Faults()

    @property
    def spec(self) -> GpuSpec:
        """The GPU."""
        return _gpu(self.gpu)


_gpu = cache(load_gpu)


def board_names() -> tuple[str, ...]:
    """Names of the shipped simulated boards, sorted."""
    return resource_names("simulated-boards")


def load_board(name_or_path: str) -> BoardProfile:
    """The profile of a simulated board by any name of its GPU or from a TOML file.

    Raises BoardProfileError for an unknown name, an unreadable file, and an impossible key or figure.
    """
    if names_file(name_or_path):
        return _read_board(Path(name_or_path))
    with suppress(SpecificationError):
        if (name := load_gpu(name_or_path).name) in board_names():
            return _read_board(resource_folder("simulated-boards") / f"{name}.toml")
    raise BoardProfileError(f"unknown simulated board {name_or_path!r}; known: {', '.join(board_names())}; or give a TOML file")


def _read_board(path: Path) -> BoardProfile:
    profile = read_file(BoardProfile, path, "board profile", BoardProfileError)
    return replace(profile, name=profile.name or path.stem)
