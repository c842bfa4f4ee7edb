"""From counted events and time to power: P = P_idle(f) + active + Σ_m α_m C_m V² f + busy.

A module's share of dynamic power is kept as energy per event at a reference voltage, from which the capacitance
follows: C_m = e_m · r_m / V₀², with r_m the events per clock at full activity.  Core modules scale with
s(V) = (V/V₀)ⁿ; n = 2 is switching alone, fitted values near 3 also carry leakage, regulator losses and the warmer
die.  DRAM has its own clock and voltage: a byte costs the same at every SM clock; a second part, `dram_path`, covers
its transfer through the core's domain.  If kernels were measured at known temperatures, leakage above the board at
rest is a separate term.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from estimator.model.phases import EVENTS, START_CLOCKS, Phases
from estimator.model.silicon import energy_factors, usual_rest_w, voltage_ratios
from estimator.vocabulary.gpu import ClockTable, GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, MODULES, Array
from estimator.vocabulary.values import arrays, frozen

POWER_TERMS: Final = ("dram", "dram_path", "l2", "shared", "tensor", "cuda", "sfu")
"""Terms whose energy is counted per event; only `dram` lies outside the core's voltage domain."""

_EVENT_OF_TERM: Final = np.array([EVENTS.index("dram" if term == "dram_path" else term) for term in POWER_TERMS])
_CORE_TERM: Final = np.array([term != "dram" for term in POWER_TERMS])

L2_CREDIT: Final = 0.35
"""Share of L2 that keeps one kernel's result for the next: traffic = B²/(B + credit·L2)."""


@arrays
class PowerModel:
    """Coefficients of the power equation.

    event_energy_j      (7,) energy per event of POWER_TERMS at the reference voltage [J]
    busy_w              power of SMs that run any kernel, at the reference point [W]
    active_w            additional power of a board in use above idle, follows the idle curve [W]
    voltage_exponent    n of s(V)
    leakage             None if the fit did not tell it apart
    """

    event_energy_j: Array
    busy_w: float
    active_w: float
    voltage_exponent: float
    reference_clock_mhz: float
    leakage: "Leakage | None"


@frozen
class Leakage:
    """Leakage of a die that is warmer than at rest, and the die's temperature.

    w_per_k                          leakage for each kelvin above `idle_c`, at the reference voltage [W/K]
    idle_c                           temperature at which idle power was measured [°C]
    operating_c, operating_k_per_w   temperature of a working board: operating_c + operating_k_per_w · power [°C], [K/W]
    """

    w_per_k: float
    idle_c: float
    operating_c: float
    operating_k_per_w: float


@arrays
class OperatingPoint:
    """State of the board at clocks of shape (c,): SM clock [Hz], voltage relative to the reference, idle power [W] and relative to it."""

    sm_clock_hz: Array
    voltage_ratio: Array
    idle_w: Array
    idle_ratio: Array


@dataclass(frozen=True, kw_only=True)
class BoardTables:
    """Voltage [V] and idle power [W] of a GPU over the SM clock; None if unknown, then as `estimator.model.silicon` says.

    `rest_offset_w`: idle power of one's own board less that of the table or rule; boards of a kind differ by a constant (`docs/model.md`).
    """

    gpu: GpuSpec
    voltage_v: ClockTable | None
    idle_w: ClockTable | None
    reference_clock_mhz: float
    rest_offset_w: float = 0.0

    def at(self, sm_clock_mhz: Array) -> OperatingPoint:
        """The board at clocks of shape (c,).

        Neither voltage nor idle power falls with the clock, so dips of measured tables are noise (`ClockTable.rising`).
        """
        reference = np.array([self.reference_clock_mhz])
        idle_w = self.rest_w(sm_clock_mhz)
        return OperatingPoint(
            sm_clock_hz=sm_clock_mhz * HZ_PER_MHZ,
            voltage_ratio=self.voltage_ratios.at(sm_clock_mhz) / self.reference_ratio,
            idle_w=idle_w,
            idle_ratio=idle_w / self.rest_w(reference),
        )

    @cached_property
    def voltage_ratios(self) -> ClockTable:
        """Voltage over that of an A100 at low clocks, over the clock [1]."""
        return voltage_ratios(self.gpu, self.voltage_v, self.idle_w)

    @cached_property
    def reference_ratio(self) -> float:
        """Voltage ratio at the reference clock [1]."""
        return float(self.voltage_ratios.at(np.array([self.reference_clock_mhz]))[0])

    def rest_w(self, sm_clock_mhz: Array) -> Array:
        """Power at rest [W], shape of the clocks: of a table, else of the rule, which the reading of a single clock scales."""
        known = self.idle_w
        if known is None:
            return self._usual_rest_w(sm_clock_mhz) + self.rest_offset_w
        if len(known.value) > 1:
            return known.rising.at(sm_clock_mhz) + self.rest_offset_w
        there = self._usual_rest_w(np.array(known.sm_clock_mhz))
        return self._usual_rest_w(sm_clock_mhz) * (known.value / there) + self.rest_offset_w

    def _usual_rest_w(self, sm_clock_mhz: Array) -> Array:
        return usual_rest_w(self.gpu, sm_clock_mhz, self.voltage_ratios.at(sm_clock_mhz))


def carried_factors(fitted: BoardTables, fitted_exponent: float, asked: BoardTables, exponent: float) -> dict[str, float]:
    """Factors that turn the energies per event and the static power of one board into those of another [1].

    Exponents are of the voltage, on either board; energies hold at each board's reference clock.
    """
    core = asked.reference_ratio**exponent / fitted.reference_ratio**fitted_exponent
    before, after = energy_factors(fitted.gpu), energy_factors(asked.gpu)
    factors = {term: core * after.get(term, 1.0) / before.get(term, 1.0) for term in (*POWER_TERMS, "busy")}
    factors["busy"] *= asked.reference_clock_mhz / fitted.reference_clock_mhz
    return factors | {"dram": factors["dram"] / core, "active": 1.0}


SWITCHING_EXPONENT: Final = 2.0
"""Exponent of s(V) if the voltage was not measured: switching alone, because an inferred voltage holds the rest."""


def busy_share(latency_s: Array, occupied: Array, gpu_share: Array, sm_clock_hz: Array) -> Array:
    """Share of `busy_w` that is drawn while one kernel is launched repeatedly, shape of `latency_s`.

    gpu_share: share of `latency_s` for which the GPU has the kernel, below 1 if it waits for the host's next launch.
    Between two launches the share is 0.  SMs without a block are gated, their supply is not.  No SM has a block while a
    kernel starts.
    """
    # Between two launches of a stream SMs are idle for about 1 µs: the first drains, the second starts.
    running = np.maximum(gpu_share - 1e-6 / latency_s, LEAST_RUNNING_SHARE)
    started = np.maximum(1.0 - START_CLOCKS / (sm_clock_hz * latency_s), LEAST_RUNNING_SHARE)
    return running * (UNGATED_SHARE + (1.0 - UNGATED_SHARE) * occupied * started)


LEAST_RUNNING_SHARE: Final = 0.2
"""Least share of a launch for which a kernel runs: the shortest run for less than 1 µs of the 3 to 4 µs that a host needs per launch."""

UNGATED_SHARE: Final = 0.5
"""Share of the busy power that is drawn when at least one SM runs: clock distribution and L2, without the SMs' own (assumed)."""


WARM_KNEE: Final = 0.8
WARM_SHARPNESS: Final = 4.0
"""Working set, in L2 sizes, above which operands leave L2 before their next use, and the sharpness of that edge [1]: most of a cache
keeps lines, and replacement is not perfect (assumed)."""


def warm_dram_share(ratio: Array) -> Array:
    """Share of traffic that crosses DRAM when operands of `ratio` L2 sizes are used again: 1 / (1 + (WARM_KNEE / ratio)^WARM_SHARPNESS).

    At infinite ratios (cold operands) all traffic crosses.  The knees of a latency fit are softer: other phases hide part of
    the DRAM time.
    """
    with np.errstate(divide="ignore", over="ignore"):
        share: Array = 1.0 / (1.0 + (WARM_KNEE / np.maximum(ratio, 1e-9)) ** WARM_SHARPNESS)
    return share


def dram_traffic(footprint_byte: Array, l2_bytes: float, credit: float) -> Array:
    """Bytes that cross DRAM when neighbouring kernels pass data through L2, shape (n,).

    B²/(B + credit·L2): small tensors stay in L2, large ones do not benefit from it.
    """
    return footprint_byte * footprint_byte / np.maximum(footprint_byte + credit * l2_bytes, 1.0)


def power_events(phases: Phases, gpu: GpuSpec, credit: float) -> Array:
    """Events of POWER_TERMS per launch, shape (n, 7)."""
    events = phases.events[:, _EVENT_OF_TERM]
    traffic = dram_traffic(phases.events[:, EVENTS.index("dram")], gpu.l2_bytes, credit)
    events[:, POWER_TERMS.index("dram")] = traffic
    events[:, POWER_TERMS.index("dram_path")] = traffic
    return events


def module_rates(gpu: GpuSpec, tensor_flop_per_clock: float) -> Array:
    """Events of POWER_TERMS per SM clock at full activity, shape (7,); DRAM's at the clock of the published peak."""
    per_clock = {
        "dram": gpu.dram_bytes_per_s / (gpu.sm_clock_max_mhz * HZ_PER_MHZ),
        "l2": gpu.l2_bytes_per_clock,
        "shared": gpu.shared_bytes_per_clock * gpu.num_sms,
        "tensor": tensor_flop_per_clock * gpu.num_sms,
        "cuda": gpu.fp32_lanes * gpu.num_sms,
        "sfu": gpu.sfu_op_per_clock * gpu.num_sms,
    }
    return np.array([per_clock["dram" if term == "dram_path" else term] for term in POWER_TERMS])


def capacitance_f(event_energy_j: Array, rates: Array, reference_voltage_v: float) -> Array:
    """Switched capacitance of each term [F], shape (7,): C = e · r / V₀².  Source: EnergAIzer (arXiv 2604.20105), eq. 5."""
    return event_energy_j * rates / reference_voltage_v**2


def term_scale(model: PowerModel, point: OperatingPoint) -> Array:
    """Factor on each term's energy at an operating point, shape (..., 7): s(V) for core terms, 1 for DRAM."""
    core = point.voltage_ratio**model.voltage_exponent
    return np.where(_CORE_TERM, core[..., None], 1.0)


def static_power_w(model: PowerModel, point: OperatingPoint, busy_share: Array) -> Array:
    """Power that does not depend on the kernels [W]: idle, active, and busy for the share of time that SMs run, shape of `busy_share`."""
    core = point.voltage_ratio**model.voltage_exponent * point.sm_clock_hz / (model.reference_clock_mhz * HZ_PER_MHZ)
    return point.idle_w + model.active_w * point.idle_ratio + model.busy_w * core * busy_share


LEAKAGE_EXPONENT: Final = 3.0
"""Exponent of the voltage in leakage."""


def leakage_power_w(model: PowerModel, point: OperatingPoint, other_w: Array) -> Array:
    """Leakage above the board at rest [W], shape of `other_w`, which is all other power.  Fits by 0.1 tell it apart."""
    leakage = model.leakage
    if leakage is None:
        return np.zeros_like(other_w)
    per_k = leakage.w_per_k * point.voltage_ratio**LEAKAGE_EXPONENT
    # Leakage warms the die, which increases leakage; beyond a gain of 0.5 no board would be stable.
    feedback = np.minimum(per_k * leakage.operating_k_per_w, 0.5)
    usual_k = leakage.operating_c - leakage.idle_c + leakage.operating_k_per_w * other_w
    return per_k * usual_k / (1.0 - feedback)


def workload_power_w(model: PowerModel, point: OperatingPoint, gpu_s: Array, latency_s: Array, energy_j: Array) -> Array:
    """Mean power of an iteration without a limit [W], from its GPU time and latency [s] and its event energy [J], shape (..., c)."""
    other_w = static_power_w(model, point, np.minimum(gpu_s / latency_s, 1.0)) + energy_j / latency_s
    return other_w + leakage_power_w(model, point, other_w)


PARTS: Final = ("idle", "active", "busy", "leakage", "DRAM", "L2", "shared", "tensor", "CUDA", "special functions")
"""Parts of power and energy: the board at rest and in use, running SMs, a warmer die, and counted events."""

_PART_OF_TERM: Final = ("DRAM", "DRAM", "L2", "shared", "tensor", "CUDA", "special functions")


def power_parts_w(model: PowerModel, point: OperatingPoint, busy_share: Array, term_w: Array) -> dict[str, Array]:
    """Power by PARTS [W], each of shape (c,); their sum is the total power.  term_w (c, 7): by POWER_TERMS."""
    nothing = np.zeros_like(busy_share)
    static_w, rest_w = static_power_w(model, point, busy_share), static_power_w(model, point, nothing)
    leakage_w = leakage_power_w(model, point, static_w + term_w.sum(axis=1))
    parts = {"idle": point.idle_w, "active": rest_w - point.idle_w, "busy": static_w - rest_w, "leakage": leakage_w}
    for part, watt in zip(_PART_OF_TERM, term_w.T, strict=True):
        parts[part] = parts.get(part, nothing) + watt
    return parts


def tensor_rate(gpu: GpuSpec) -> float:
    """Reference rate of tensor activity: 16-bit operands [flop / (clock · SM)].

    A core at its peak draws as much in any format: set alone, it changes the energy of all other formats.
    """
    return gpu.tensor_flop_per_clock.get("bf16", gpu.tensor_flop_per_clock.get("fp16", gpu.cuda_flop_per_clock["fp32"]))


def module_activity(phases: Phases, gpu: GpuSpec, latency_s: Array, sm_clock_hz: float) -> Array:
    """Share of a kernel's time for which each module works at its published rate, shape (n, 6) in the order of MODULES.

    Clipped to 1: counts are ideal, and a published rate can be exceeded by a few percent.
    """
    rates = dict(zip(POWER_TERMS, (module_rates(gpu, tensor_rate(gpu)) * sm_clock_hz).tolist(), strict=True))
    rates["dram"] = gpu.dram_bytes_per_s
    per_module = np.array([rates[module] for module in MODULES])
    activity: Array = np.clip(phases.events / np.maximum(latency_s[:, None] * per_module, 1e-300), 0.0, 1.0)
    return activity
