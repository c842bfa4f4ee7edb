"""Power in the form of AccelWattch: constant, static, and counted accesses of components.

    P = C + τ·f + β·f³ + P_active + [Σ_m e_m N_m (V/V₀)² + P_sm·(f/f₀)·(V/V₀)²·T_gpu] / T

C, τ, β: a cubic without a quadratic term through the power of the board at rest over its clocks, as AccelWattch separates what is constant
from static and clocked power.  N_m: counted bytes, flop, lane instructions and special functions of a component, e_m the energy of one.
AccelWattch takes N_m and the time from a simulator or from counters of a run.  Without either, N_m are those that the bundle's equations
count, T is the time that they predict, and e_m, P_sm and P_active are the bundle's, whose fit has the same part as AccelWattch's quadratic
programme over its microbenchmarks.  (Its published coefficients scale the energies of McPAT and are no joules by themselves.)

What remains unlike `estimator.power`: components scale with V² and not with a fitted power of V; idle power is a curve of three numbers and
not a table; every byte that a kernel asks of DRAM crosses it, none waits in L2 for the next kernel; no leakage of a warmer die.
Source: Kandiah et al., "AccelWattch" (MICRO 2021), section 4.
"""

from typing import Final

import numpy as np

from estimator.engine import Prediction, Prepared
from estimator.gpu import ClockTable
from estimator.power import POWER_TERMS, OperatingPoint, PowerModel, power_events
from estimator.quantities import HZ_PER_MHZ, Array

SHAPES: Final = ((0, 1, 2), (0, 2), (0, 1), (0,))
"""Which of f⁰, f¹, f³ a curve of idle power has: all, or fewer where one would be negative."""


def rest_curve_w(idle: ClockTable, sm_clock_mhz: Array) -> Array:
    """C + τ·f + β·f³ through an idle table [W], none of them negative, shape of `sm_clock_mhz`."""
    clocks = np.array(idle.sm_clock_mhz)
    scale = float(clocks.max())
    powers, values = _powers(clocks / scale), np.array(idle.value)
    fits = [(shape, np.linalg.lstsq(powers[:, shape], values, rcond=None)[0]) for shape in SHAPES]
    allowed = [(float(np.sum((powers[:, shape] @ found - values) ** 2)), shape, found) for shape, found in fits if np.all(found >= 0.0)]
    _, shape, found = min(allowed, key=lambda fit: fit[0])
    result: Array = _powers(sm_clock_mhz / scale)[:, shape] @ found
    return result


def _powers(relative: Array) -> Array:
    return np.stack([np.ones_like(relative), relative, relative**3], axis=-1)


def component_rates(prepared: Prepared, latency_s: Array, point: OperatingPoint) -> Array:
    """Events of POWER_TERMS a second, core terms times (V/V₀)², shape (c, 7): what a power in AccelWattch's form is linear in.

    latency_s (c,) of the iteration of a single workload.
    """
    totals = prepared.counts @ power_events(prepared.phases, prepared.board.gpu, credit=0.0)
    core = np.array([term != "dram" for term in POWER_TERMS])
    scale = np.where(core[None, :], (point.voltage_ratio**2)[:, None], 1.0)
    result: Array = totals[None, :] * scale / latency_s[:, None]
    return result


def component_power_w(prediction: Prediction, model: PowerModel) -> Array:
    """Mean power over an iteration of a single workload at its clocks and times [W], shape (c,)."""
    board, clock_mhz, latency_s = prediction.prepared.board, prediction.sm_clock_mhz[0], prediction.latency_s[0]
    point = board.tables.at(clock_mhz)
    rest_w = point.idle_w if board.tables.idle_w is None else rest_curve_w(board.tables.idle_w, clock_mhz)
    clocked = point.voltage_ratio**2 * point.sm_clock_hz / (model.reference_clock_mhz * HZ_PER_MHZ)
    dynamic_w = component_rates(prediction.prepared, latency_s, point) @ model.event_energy_j
    result: Array = rest_w + model.active_w + model.busy_w * clocked * np.minimum(prediction.gpu_s[0] / latency_s, 1.0) + dynamic_w
    return result
