"""Power of the simulated silicon: voltage, leakage, clock tree and the energy of events."""

import math
from typing import Final

import numpy as np

from collector.errors import BoardProfileError
from collector.simulated.plan import KernelPlan, steady_noise
from collector.simulated.profile import BoardProfile

JOULE_PER_PICOJOULE: Final = 1e-12


def voltage_v(profile: BoardProfile, sm_clock_mhz: float) -> float:
    """Supply at rest for a clock: the curve rounded up to the regulator's step [V]."""
    clock = profile.clock
    curve = float(np.interp(sm_clock_mhz, clock.sm_clock_mhz, clock.voltage_v))
    # keeps rounding from lifting a voltage on a step to the next one [step]
    return round(math.ceil(curve / clock.voltage_step_v - 1e-9) * clock.voltage_step_v, 6)


def relative_voltage(profile: BoardProfile, volt: float) -> float:
    """A voltage over the reference [1].  Raises BoardProfileError if a load line leaves no voltage, or far too much."""
    relative = volt / profile.energy.reference_voltage_v
    if not 0 < relative < 100.0:
        raise BoardProfileError(f"board profile {profile.name}: its voltage comes to {volt:.3g} V; see clock.load_line_ohm")
    return relative


def leakage_w(profile: BoardProfile, volt: float, temperature_c: float) -> float:
    """Leakage at a voltage and die temperature [W].  Raises BoardProfileError for a board that its own heat would destroy."""
    power, relative = profile.power, relative_voltage(profile, volt)
    hotter = (temperature_c - power.leakage_temperature_c) / power.leakage_scale_k
    # limits of a voltage over the reference [1], and of the logarithm of the leakage's growth: beyond them figures overflow
    if not max(hotter, power.leakage_voltage_exponent * math.log(relative)) < 100.0:
        raise BoardProfileError(f"board profile {profile.name}: its die comes to {temperature_c:.3g} °C; see thermal and power.leakage_…")
    over_voltage: float = relative**power.leakage_voltage_exponent
    return power.leakage_w * over_voltage * math.exp(hotter)


def clock_tree_w(profile: BoardProfile, full_w: float, volt: float, sm_clock_mhz: float) -> float:
    """Power ∝ V² f that is `full_w` at the reference voltage and clock [W]."""
    return full_w * relative_voltage(profile, volt) ** 2 * sm_clock_mhz / profile.power.reference_clock_mhz


def rest_power_w(profile: BoardProfile, sm_clock_mhz: float, volt: float, temperature_c: float) -> float:
    """Power of the board at rest [W]."""
    tree = clock_tree_w(profile, profile.power.idle_clock_w, volt, sm_clock_mhz)
    return profile.power.board_w + tree + leakage_w(profile, volt, temperature_c)


def planted_event_energy_j(profile: BoardProfile) -> dict[str, float]:
    """Planted energy of one event by module at the reference voltage [J]; tensor for 16-bit operands."""
    energy = profile.energy
    picojoules = {
        "dram": energy.dram_pj_per_byte,
        "l2": energy.l2_pj_per_byte,
        "shared": energy.shared_pj_per_byte,
        "tensor": energy.tensor_pj_per_flop,
        "cuda": energy.cuda_pj_per_op,
        "sfu": energy.sfu_pj_per_op,
    }
    return {module: each * JOULE_PER_PICOJOULE for module, each in picojoules.items()}


def launch_energy(profile: BoardProfile, plan: KernelPlan, l2_state: str) -> tuple[float, float]:
    """Energy of one launch, with the switching of its kernel and data: of the core at the reference voltage, and of memory [J]."""
    each, energy, kernel = planted_event_energy_j(profile), profile.energy, plan.kernel
    noise = steady_noise("switching", kernel.kernel_name, kernel.grid, float(kernel.working_set_bytes))
    lanes = plan.lane_ops if plan.switched_ops is None else plan.switched_ops
    switched = lanes * each["cuda"] + plan.sfu_ops * each["sfu"]
    if plan.on_cuda_cores:
        # An instruction on padding is issued all the same.
        switched += (plan.product_flop + 0.5 * plan.padded_flop) / 2.0 * each["cuda"]
    else:
        precision = energy.tensor_precision_factor.get(kernel.operator.precision, 1.0)
        switched += (plan.product_flop + energy.padding_share * plan.padded_flop) * precision * each["tensor"]
    core_j = switched * max(0.5, 1.0 + energy.switching_spread * noise)
    core_j += (plan.l2_bytes + plan.scattered_bytes) * each["l2"] + plan.shared_bytes * each["shared"]
    if plan.has_pitch(profile.faults.hidden_pitch_bytes):
        core_j += plan.l2_bytes * profile.faults.hidden_pj_per_byte * JOULE_PER_PICOJOULE
    return core_j, plan.traffic[l2_state] * each["dram"]
