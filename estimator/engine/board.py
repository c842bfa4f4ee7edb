"""The board of an estimate: requested clocks, limit and host, and the board's voltage, rest power and power equation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypedDict

import numpy as np

from estimator.bundle.content import Bundle, HostCost, PowerCoefficients
from estimator.model.coefficients import COLUMN, EFFICIENCY_COEFFICIENTS
from estimator.model.power import POWER_TERMS, SWITCHING_EXPONENT, BoardTables, Leakage, PowerModel, carried_factors
from estimator.model.power_limit import LIMIT_SHARE, LIMIT_SHARE_STD, UNLIMITED_W, Held
from estimator.uncertainty.laboratory import host_of, scale_of
from estimator.vocabulary.errors import ArgumentError, OperatingPointError, real, reals, require
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

Clocks = float | Sequence[float] | Array | None
"""Requested SM clocks [MHz]; None: the GPU's usual clock."""


class BoardSettings(TypedDict, total=False):
    """Settings of a board.

    sm_clock_mhz   requested clocks [MHz]; None: the GPU's usual clock
    power_cap_w    power limit [W], the GPU's own if None
    host_launch_s  host cost of one framework operator [s]
    efficiency     module → share of its published rate that is reached, in place of the fitted coefficient
    idle_power     power at rest of one's own board, awake [W], and the SM clock at which it was read [MHz]
    """

    sm_clock_mhz: Clocks
    power_cap_w: float | None
    idle_power: tuple[float, float] | None
    host_launch_s: float | None
    efficiency: Mapping[str, float] | None


class Settings(BoardSettings, total=False):
    """Settings of a board, its GPU (a GPU other than the bundle's makes a forecast), and the collection for which the answer holds."""

    gpu: GpuSpec | None
    collection: str | None


@frozen
class Board:
    """A GPU with a bundle and the requested settings.

    asked_mhz    SM clocks (c,) [MHz]
    limit_w      power limit; held: what a throttled board draws of it
    host         the bundle's host, or an unknown one; launch_s: its time to launch one operator, or the asker's [s] (own_host)
    scale        factor on the times by the bundle's coefficients (`estimator.uncertainty.laboratory`) [1]
    collection   the collection to which the scale belongs; None: their mean
    efficiency   module → share of its published rate, in place of the fitted coefficient
    model        power equation, None for a bundle without power; tables: voltage and power at rest over the clock
    rest_known   whether power at rest is that of one's own board
    """

    bundle: Bundle
    gpu: GpuSpec
    asked_mhz: Array
    limit_w: float
    held: Held
    scale: float
    collection: str | None
    host: HostCost
    launch_s: float
    own_host: bool
    efficiency: Mapping[str, float]
    model: PowerModel | None
    tables: BoardTables
    rest_known: bool

    @property
    def launch_ln_std(self) -> float:
        """Uncertainty of ln(launch_s); 0 if it is the asker's."""
        return 0.0 if self.own_host else float(np.fmax(self.host.launch_ln_std, 0.0))


def open_board(
    bundle: Bundle,
    *,
    sm_clock_mhz: Clocks = None,
    gpu: GpuSpec | None = None,
    power_cap_w: float | None = None,
    host_launch_s: float | None = None,
    efficiency: Mapping[str, float] | None = None,
    idle_power: tuple[float, float] | None = None,
    collection: str | None = None,
) -> Board:
    """The board under the settings of `estimate`, checked.

    Raises OperatingPointError for a clock outside the GPU's range and for impossible settings, ArgumentError for settings of a wrong type.
    collection: the collection of the bundle for which the answer holds; None: their mean.
    """
    require(bundle, Bundle, "bundle", "a Bundle, as load_bundle gives it")
    require(gpu, (GpuSpec, type(None)), "gpu", "a GpuSpec, as load_gpu gives it")
    spec = gpu or bundle.gpu
    limit_w, tables, host = power_limit(power_cap_w, spec), bundle.once(board_tables, spec), host_of(bundle, spec)
    if limit_w < spec.power_limit_w and bundle.power is None:
        raise OperatingPointError(f"bundle {bundle.name} has no power coefficients: the clock under a cap is unknown; leave the cap out")
    rest_w = float(tables.rest_w(np.array([spec.sm_clock_min_mhz]))[0])
    if idle_power is None and rest_w >= spec.power_limit_w:
        raise OperatingPointError(
            f"{spec.name} draws {rest_w:.0f} W at rest, more than its limit, {spec.power_limit_w:g} W; state what it draws (--idle-power), "
            "or correct the limit (--set power_limit_w=W)"
        )
    return Board(
        bundle=bundle,
        gpu=spec,
        asked_mhz=asked_clocks(sm_clock_mhz, spec),
        limit_w=limit_w,
        held=held_limit(bundle, spec, limit_w),
        scale=bundle.once(scale_of, collection),
        collection=collection,
        host=host,
        launch_s=host.launch_s if host_launch_s is None else host_launch(host_launch_s),
        own_host=host_launch_s is not None,
        efficiency=efficiency or {},
        model=power_model(bundle, spec),
        tables=tables if idle_power is None else with_idle_power(tables, idle_power, limit_w),
        rest_known=idle_power is not None,
    )


def held_limit(bundle: Bundle, gpu: GpuSpec, limit_w: float) -> Held:
    """Power that a throttled board holds of a limit: as fitted on this board, else as boards usually do."""
    own = bundle.power if gpu.name == bundle.gpu.name else None
    share, std = (LIMIT_SHARE, LIMIT_SHARE_STD) if own is None else (own.limit_share, own.limit_share_std)
    return Held(limit_w * share, std / share)


def power_model(bundle: Bundle, gpu: GpuSpec) -> PowerModel | None:
    """The bundle's power coefficients, for another GPU carried to that one; None if it has none."""
    power = bundle.power
    if power is None:
        return None
    if gpu != bundle.gpu:
        power = carried_power(bundle, power, gpu)
    return PowerModel(
        event_energy_j=np.array([power.event_energy_j.get(term, 0.0) for term in POWER_TERMS]),
        busy_w=power.busy_w,
        active_w=power.active_w,
        voltage_exponent=power.voltage_exponent,
        reference_clock_mhz=power.reference_clock_mhz,
        leakage=None
        if power.leakage_w_per_k == 0.0
        else Leakage(
            w_per_k=power.leakage_w_per_k, idle_c=power.rest_c, operating_c=power.operating_c, operating_k_per_w=power.operating_k_per_w
        ),
    )


def carried_power(bundle: Bundle, power: PowerCoefficients, gpu: GpuSpec, tables: BoardTables | None = None) -> PowerCoefficients:
    """The power coefficients of a bundle for another GPU (`estimator.model.silicon`), at its tables' reference if they are given."""
    asked = tables or board_tables(bundle, gpu)
    exponent = power.voltage_exponent if asked.voltage_v else SWITCHING_EXPONENT
    factors = carried_factors(board_tables(bundle, bundle.gpu), power.voltage_exponent, asked, exponent)
    return replace(
        power,
        event_energy_j={term: factors[term] * energy for term, energy in power.event_energy_j.items()},
        capacitance_f={term: factors[term] * farad for term, farad in power.capacitance_f.items()},
        busy_w=factors["busy"] * power.busy_w,
        reference_clock_mhz=asked.reference_clock_mhz,
        voltage_exponent=exponent,
        limit_share=LIMIT_SHARE,
        limit_share_std=LIMIT_SHARE_STD,
    )


def board_tables(bundle: Bundle, gpu: GpuSpec) -> BoardTables:
    """Voltage and idle power: from the bundle, or for another GPU from that GPU."""
    voltage, idle = (bundle.voltage, bundle.idle) if gpu.name == bundle.gpu.name else (None, None)
    return BoardTables(
        gpu=gpu,
        voltage_v=voltage or gpu.voltage_v,
        idle_w=idle or gpu.idle_w,
        reference_clock_mhz=bundle.power.reference_clock_mhz if bundle.power else gpu.sm_clock_max_mhz,
    )


def with_idle_power(tables: BoardTables, idle_power: tuple[float, float], limit_w: float) -> BoardTables:
    """The tables with power at rest as read on one's own board at one clock, at all other clocks higher or lower by as much.

    Raises OperatingPointError for a reading that leaves nothing at the lowest clock or is not below the limit, and for a clock that the
    board cannot lock.
    """
    given, gpu = reals(idle_power, "idle_power", "W and MHz"), tables.gpu
    if len(given) != 2:
        raise ArgumentError(f"idle_power = {idle_power!r:.40}: a pair is needed, W and MHz")
    watt, clock = given[0], asked_clocks(given[1], gpu)[0]
    lowest, there = tables.rest_w(np.array([gpu.sm_clock_min_mhz, clock]))
    if not there - lowest < watt < limit_w:
        raise OperatingPointError(
            f"idle power {watt:g} W at {clock:g} MHz contradicts {gpu.name}: there it draws {there - lowest:.0f} W more than at its lowest "
            f"clock, and less than its limit, {limit_w:g} W; read it with a context and without a kernel, or correct the limit "
            "(--power-cap, --set power_limit_w=W)"
        )
    return replace(tables, rest_offset_w=float(watt - there))


def asked_clocks(sm_clock_mhz: Clocks, gpu: GpuSpec) -> Array:
    """Requested SM clocks as an array [MHz], shape (c,); None gives the GPU's usual clock.

    Raises OperatingPointError for an empty list and for a clock outside the range that can be set, ArgumentError for other types.
    """
    given = gpu.usual_clock_mhz if sm_clock_mhz is None else sm_clock_mhz
    clocks = reals(given, "sm_clock_mhz", "MHz")
    if clocks.size == 0:
        raise OperatingPointError("no SM clock given: name at least one, in MHz")
    low, high = gpu.sm_clock_min_mhz, gpu.sm_clock_limit_mhz
    wrong = clocks[~((clocks >= low) & (clocks <= high))]
    if wrong.size:
        raise OperatingPointError(f"SM clock {wrong[0]:g} MHz is outside what {gpu.name} can lock: {low:g} to {high:g} MHz")
    return clocks


def power_limit(power_cap_w: float | None, gpu: GpuSpec) -> float:
    """The power limit in force [W]: the requested one, else the GPU's own.

    Raises OperatingPointError for more than the board's own limit, which a driver does not accept either.
    """
    if power_cap_w is None:
        return gpu.power_limit_w
    if not math.isfinite(real(power_cap_w, "power_cap_w", "W")) or power_cap_w <= 0:
        raise OperatingPointError(f"power cap {power_cap_w!r} W must be a positive number")
    if gpu.power_limit_w < power_cap_w != UNLIMITED_W:
        raise OperatingPointError(
            f"power cap {power_cap_w:g} W is above the limit of {gpu.name}, {gpu.power_limit_w:g} W; "
            f"for a board with another limit say --set power_limit_w={power_cap_w:g} (in Python: override_gpu)"
        )
    return float(power_cap_w)


def host_launch(value: float) -> float:
    """The host's time to launch one operator [s], checked: a host that needs longer than a second runs no model."""
    if not 0.0 <= real(value, "host_launch_s", "s") <= 1.0:
        raise OperatingPointError(f"host launch time {value!r} s must be zero or a positive number, and at most 1 s")
    return float(value)


def with_efficiency(coefficients: Array, efficiency: Mapping[str, float]) -> Array:
    """Coefficients (n, ·) with those of the named modules replaced by 1 / efficiency if the kernel has that phase.

    Raises OperatingPointError for an unknown module and for an efficiency outside 0.001 to 1.5.
    """
    if not efficiency:
        return coefficients
    require(efficiency, Mapping, "efficiency", 'a mapping such as {"dram": 0.8}')
    changed = coefficients.copy()
    for module, value in efficiency.items():
        if module not in EFFICIENCY_COEFFICIENTS:
            raise OperatingPointError(f"no efficiency of {module!r} can be set; known: {', '.join(EFFICIENCY_COEFFICIENTS)}")
        if not LEAST_EFFICIENCY <= real(value, f"efficiency of {module}", "shares of the published rate") <= MOST_EFFICIENCY:
            raise OperatingPointError(f"efficiency {module}={value!r} must lie within {LEAST_EFFICIENCY:g} and {MOST_EFFICIENCY:g}")
        for name in EFFICIENCY_COEFFICIENTS[module]:
            column = changed[:, COLUMN[name]]
            changed[:, COLUMN[name]] = np.where(column > 0, 1.0 / value, column)
    return changed


LEAST_EFFICIENCY: Final = 1e-3
"""Least efficiency: hardware that reaches less of its published rate is broken, and far smaller values overflow floats."""

MOST_EFFICIENCY: Final = 1.5
"""Largest efficiency: hardware can exceed published rates slightly, by boost clocks for example."""
