"""What a bundle says of a board's power: the coefficients of the power equation, and voltage and idle power over the clock."""

import numpy as np

from estimator.bundles.content import Bundle, PowerCoefficients, measured_tables
from estimator.gpu import GpuSpec
from estimator.power import POWER_TERMS, BoardTables, Leakage, PowerModel


def power_model(bundle: Bundle) -> PowerModel | None:
    """The bundle's power coefficients, None where it has none."""
    return bundle.once(_power_model)


def _power_model(bundle: Bundle) -> PowerModel | None:
    power = bundle.power
    if power is None:
        return None
    return PowerModel(
        event_energy_j=np.array([power.event_energy_j.get(term, 0.0) for term in POWER_TERMS]),
        busy_w=power.busy_w,
        active_w=power.active_w,
        voltage_exponent=power.voltage_exponent,
        l2_credit=power.l2_credit,
        reference_clock_mhz=power.reference_clock_mhz,
        warm_knee=power.warm_knee,
        warm_sharpness=power.warm_sharpness,
        leakage=_leakage(bundle, power),
    )


def _leakage(bundle: Bundle, power: PowerCoefficients) -> Leakage | None:
    """The bundle's leakage, None where it was not measured or the temperature at rest is unknown."""
    idle_c = bundle.idle.temperature_c if bundle.idle is not None else None
    if idle_c is None or power.leakage_w_per_k == 0.0:
        return None
    return Leakage(w_per_k=power.leakage_w_per_k, idle_c=idle_c, operating_c=power.operating_c, operating_k_per_w=power.operating_k_per_w)


def board_tables(bundle: Bundle, gpu: GpuSpec) -> BoardTables:
    """Voltage and idle power: the bundle's, for another GPU that GPU's own."""
    voltage, idle = bundle.once(measured_tables) if gpu.name == bundle.gpu.name else (None, None)
    return BoardTables(
        voltage_v=voltage or gpu.voltage_v,
        idle_w=idle or gpu.idle_w,
        reference_clock_mhz=bundle.power.reference_clock_mhz if bundle.power else gpu.sm_clock_max_mhz,
        power_limit_w=gpu.power_limit_w,
    )
