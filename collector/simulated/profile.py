"""The profile of a simulated board: a TOML file in `configs/boards` as frozen dataclasses."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from collector.errors import BoardProfileError
from collector.simulated.library_tiles import TENSOR_KERNELS
from collector.tables import TableReader
from estimator.quantities import BYTES_PER_ELEMENT
from estimator.resources import resource_folder, resource_names

SENSOR_KINDS: Final = ("boxcar", "low-pass")
CLOCK_KINDS: Final = ("rigid", "renewal")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityProfile:
    """What the board says of itself."""

    product_name: str
    driver: str
    vbios: str
    pci_address: str
    voltage_readable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyProfile:
    """Planted energy of one event at `reference_voltage_v` [pJ].

    `tensor_pj_per_flop` holds for 16-bit operands; `tensor_precision_factor` multiplies it for others.
    Core events scale with V²; `dram_pj_per_byte` does not.  A padded flop (an operand outside the matrix: zeros)
    costs `padding_share` of a useful one.  `switching_spread` is the standard deviation of the data-dependent
    switching factor around 1.
    """

    reference_voltage_v: float
    tensor_pj_per_flop: float
    tensor_precision_factor: Mapping[str, float]
    cuda_pj_per_op: float
    sfu_pj_per_op: float
    shared_pj_per_byte: float
    l2_pj_per_byte: float
    dram_pj_per_byte: float
    padding_share: float
    switching_spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerProfile:
    """Power that is not tied to events [W].

    At rest: `board_w` (memory, fans, converters), the clock tree `idle_clock_w` at the reference voltage and
    `reference_clock_mhz` (∝ V² f), leakage `leakage_w` at the reference voltage and `leakage_temperature_c`,
    ∝ V^`leakage_voltage_exponent` · exp(ΔT / `leakage_scale_k`).  While a kernel runs: `active_w`, and
    `sm_clock_w` with all SMs busy at the reference voltage and clock (∝ V² f), of which `ungated_share` is there
    however few SMs are busy.
    """

    reference_clock_mhz: float
    board_w: float
    idle_clock_w: float
    leakage_w: float
    leakage_temperature_c: float
    leakage_scale_k: float
    leakage_voltage_exponent: float
    active_w: float
    sm_clock_w: float
    ungated_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockProfile:
    """Clocks and voltage.

    `voltage_v` over `sm_clock_mhz`, rounded up to `voltage_step_v`.  Under load the voltage sags by
    `load_line_ohm` times the current, and the clock by `droop_share` at the power limit.  Unlocked, the board
    boosts to `boost_mhz` and rests at `idle_mhz`; above `slowdown_temperature_c` it loses `slowdown_mhz_per_k`.
    """

    boost_mhz: float
    idle_mhz: float
    sm_clock_mhz: tuple[float, ...]
    voltage_v: tuple[float, ...]
    voltage_step_v: float
    load_line_ohm: float
    droop_share: float
    governor_delay_s: float
    slowdown_temperature_c: float
    slowdown_mhz_per_k: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ThermalProfile:
    """Two thermal masses in series with the surroundings: the die and its sink."""

    ambient_c: float
    die_k_per_w: float
    die_time_s: float
    sink_k_per_w: float
    sink_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """The memory path.

    `dram_share` and `l2_share` are the reachable shares of the published bandwidths, `path_bytes_per_clock` the
    port between an SM and the L2.  Unloaded latencies `l2_latency_clocks` and `dram_latency_s` grow with the
    load by `dram_queue_s` and `path_queue_clocks` (u / (1 − u)).  An SM keeps `outstanding_bytes` in flight.
    `l2_usable_share` of the L2 keeps its lines; `l2_edge` is the sharpness of falling out of it.
    """

    dram_share: float
    l2_share: float
    path_bytes_per_clock: float
    l2_latency_clocks: float
    dram_latency_s: float
    dram_queue_s: float
    path_queue_clocks: float
    outstanding_bytes: float
    l2_usable_share: float
    l2_edge: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleProfile:
    """Blocks and launches.

    `dispatch_clocks` per block, `block_start_clocks` before a block's first instruction, `sm_spread` between
    SMs and `block_spread` between blocks (relative standard deviations).  A launch costs the host
    `host_launch_s`, leaves a gap `launch_gap_s` on the GPU, starts `launch_lag_s` after the host's stamp, and
    has run-to-run and within-run relative spreads.
    """

    dispatch_clocks: float
    block_start_clocks: float
    sm_spread: float
    block_spread: float
    host_launch_s: float
    launch_gap_s: float
    launch_lag_s: float
    run_spread: float
    segment_spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryProfile:
    """The simulated vendor library: which kernel sets it draws from, how well they use the matrix units, and how it chooses.

    Its costs of a kernel are off by `liking_spread` for all shapes alike and by `choice_spread` from one neighbourhood of
    shapes to the next (standard deviations of the logarithm).
    """

    generation: str
    tensor_efficiency: float
    cuda_efficiency: float
    stream_path_share: float
    choice_spread: float
    liking_spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TransientProfile:
    """How board power follows the silicon: shares that lag by time constants, the rest within `fast_time_s`."""

    fast_time_s: float
    slow_share: float
    slow_time_s: float
    creep_share: float
    creep_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorProfile:
    """The board's power sensor.

    `kind` boxcar (width `window_s`) or low-pass (`window_s` = 2τ).  `clock` rigid (update k at φ + kT + jitter +
    slow wander) or renewal (jitter adds up).  `average_slots` updates form the trailing mean of the "average" field
    (0: no such field).
    """

    kind: str
    window_s: float
    update_period_s: float
    clock: str
    jitter_s: float
    wander_s: float
    wander_period_s: float
    delay_s: float
    gain: float
    offset_w: float
    noise_w: float
    quantum_w: float
    skip_share: float
    average_slots: int
    average_weight: float
    energy_counter: bool
    poll_period_s: float
    poll_spread_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """Links beyond the board: to the host over PCI Express, to `peers` other boards.

    Rates hold in one direction, payload only; latencies are those of one word; energies are what this board spends for each byte.
    """

    host_bytes_per_s: float = 24e9
    host_latency_s: float = 1.3e-6
    host_pj_per_byte: float = 60.0
    peers: int = 0
    peer_bytes_per_s: float = 230e9
    peer_latency_s: float = 1.6e-6
    peer_pj_per_byte: float = 28.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Effects that are switched on to test who notices.  All off by default.

    `stale_share` of the runs find the sensor frozen for their whole length; `throttle_share` run at
    `throttle_factor` of the clock for a hot neighbour; `slow_host_share` on a host `slow_host_factor` slower.
    Generated kernels whose names stand in `corrupted` (separated by spaces) come back with wrong results; those in
    `kills` break the context.
    Beside `foreign_share` of the runs another process computes on the board: it draws `foreign_w` and slows the run by `foreign_slowdown`.
    `hidden_pj_per_byte` is the energy of a module that no table names: it works on every byte of kernels whose
    row pitch is a multiple of `hidden_pitch_bytes`, and slows these by `hidden_slowdown`.
    """

    stale_share: float = 0.0
    throttle_share: float = 0.0
    throttle_factor: float = 0.8
    slow_host_share: float = 0.0
    slow_host_factor: float = 1.3
    foreign_share: float = 0.0
    foreign_w: float = 60.0
    foreign_slowdown: float = 1.2
    hidden_pj_per_byte: float = 0.0
    hidden_pitch_bytes: float = 4096.0
    hidden_slowdown: float = 0.0
    corrupted: str = ""
    kills: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardProfile:
    """A simulated board: the GPU's name in `configs/gpus` and its planted physics."""

    name: str
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
    link: LinkProfile = field(default_factory=LinkProfile)
    faults: Faults = field(default_factory=Faults)


def board_names() -> tuple[str, ...]:
    """Names of the simulated boards that are shipped, sorted."""
    return resource_names("boards", ".toml")


def load_board(name_or_path: str) -> BoardProfile:
    """The profile of a simulated board by its name or from a TOML file.

    Raises BoardProfileError for an unknown name, an unreadable file, and a key or figure that cannot be.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        return _read_board(Path(name_or_path))
    if name_or_path not in board_names():
        known = ", ".join(board_names())
        raise BoardProfileError(f"unknown simulated board {name_or_path!r}; known: {known}; or give a TOML file")
    return _shipped_board(name_or_path)


@cache
def _shipped_board(name: str) -> BoardProfile:
    return _read_board(resource_folder("boards") / f"{name}.toml")


def _read_board(path: Path) -> BoardProfile:
    where = f"board profile {path}"
    reader = TableReader(where=where, error=BoardProfileError)
    document = reader.read(path, "profile")
    document.setdefault("name", path.stem)
    profile: BoardProfile = reader.build(BoardProfile, document)
    _check(profile, where)
    return profile


SIGNED: Final = frozenset({"offset_w", "delay_s", "ambient_c", "leakage_temperature_c"})
"""Figures that may be negative; all others must not."""


POSITIVE: Final = frozenset(
    {
        "sm_clock_mhz", "voltage_v", "voltage_step_v", "reference_voltage_v", "reference_clock_mhz", "leakage_scale_k", "die_time_s",
        "sink_time_s", "creep_time_s", "slow_time_s", "fast_time_s", "wander_period_s", "tensor_efficiency", "cuda_efficiency",
        "path_bytes_per_clock", "outstanding_bytes", "hidden_pitch_bytes", "l2_usable_share", "l2_share", "dram_share",
        "stream_path_share", "host_bytes_per_s", "peer_bytes_per_s", "window_s", "update_period_s", "poll_period_s", "gain", "quantum_w",
    }
)  # fmt: skip
"""Figures by which others are divided, or without which nothing happens; all others may be 0."""

SMALLEST, LARGEST = 1e-9, 1e13
"""Beyond these no figure of a board lies, in its unit; the smallest that ships is 1.2e-7 s, the largest 2.3e11 byte/s."""

SHORTEST_S: Final = 1e-4
"""Of the periods of a sensor: a simulated second of shorter ones takes minutes."""


LONGEST_S, LATEST_S = 1e4, 10.0
"""Of periods and time constants, and of latencies, gaps and delays: a simulated launch of hours would be polled for hours."""


def _check_number(value: float, name: str, where: str) -> None:
    """Raises BoardProfileError for a figure that its name cannot have."""
    if value < 0 and name not in SIGNED:
        raise BoardProfileError(f"{where} = {value} must not be negative")
    if value == 0 and name in POSITIVE:
        raise BoardProfileError(f"{where} must be positive")
    least = SHORTEST_S if name.endswith("_period_s") else SMALLEST
    lasts = name.endswith("_s") and not name.endswith("_per_s")
    most = (LONGEST_S if name.endswith(("_period_s", "_time_s")) else LATEST_S) if lasts else LARGEST
    if value and not least <= abs(value) <= most:
        raise BoardProfileError(f"{where} = {value:g} lies outside {least:g} to {most:g}")


def _check(profile: BoardProfile, where: str) -> None:
    """Ranges that types cannot say.  Raises BoardProfileError."""
    for section in dataclasses.fields(profile):
        part = getattr(profile, section.name)
        if not dataclasses.is_dataclass(part):
            continue
        for item in dataclasses.fields(part):
            value = getattr(part, item.name)
            for number in value if isinstance(value, tuple) else value.values() if isinstance(value, Mapping) else (value,):
                if isinstance(number, float | int):
                    _check_number(number, item.name, f"{where}: {section.name}.{item.name}")
            if item.name.endswith("_share") and value > 1:
                raise BoardProfileError(f"{where}: {section.name}.{item.name} = {value} is a share, at most 1")
    clock, sensor = profile.clock, profile.sensor
    if len(clock.sm_clock_mhz) != len(clock.voltage_v) or list(clock.sm_clock_mhz) != sorted(set(clock.sm_clock_mhz)):
        raise BoardProfileError(f"{where}: clock.sm_clock_mhz must ascend and be as long as clock.voltage_v")
    words: list[tuple[str, str, Iterable[str]]] = [
        ("sensor.kind", sensor.kind, SENSOR_KINDS),
        ("sensor.clock", sensor.clock, CLOCK_KINDS),
        ("library.generation", profile.library.generation, TENSOR_KERNELS),
        *(("energy.tensor_precision_factor", key, BYTES_PER_ELEMENT) for key in profile.energy.tensor_precision_factor),
    ]
    for place, word, known in words:
        if word not in known:
            raise BoardProfileError(f"{where}: {place}: {word!r} is not known; known: {', '.join(known)}")
