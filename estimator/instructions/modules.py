"""Several GPU modules as one: energy over links, constant energy shared, and how well energy and delay scale.

    E_N = E_dynamic + b_link · 8 · L + P_const T_N ((1 − s) N + s)

L is the energy of a bit on a link and s the share of constant power that all modules have in common.  Energy-delay product
EDⁱP = E Tⁱ; its scaling efficiency EDⁱPSE = 100 EDⁱP_1 / (Nⁱ EDⁱP_N), which is 100 % for a linear speed-up at constant energy.
Source: Arunkumar et al., GPUJoule (HPCA 2019), eq. 1 to 3 and section V.A.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from estimator.errors import CountsError
from estimator.quantities import Array

BITS: Final = 8
PERCENT: Final = 100.0
PICO: Final = 1e-12

HBM_PJ_PER_BIT: Final = 21.1
"""DRAM to L2 with HBM [pJ/bit] (section V.A.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Integration:
    """How modules hang together: energy of a bit on a link [pJ/bit], and the share of constant power that they have in common [1]."""

    link_pj_per_bit: float
    shared_constant: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.link_pj_per_bit) and self.link_pj_per_bit >= 0):
            raise CountsError(f"an energy on a link of {self.link_pj_per_bit} pJ/bit cannot be")
        if not 0 <= self.shared_constant <= 1:
            raise CountsError(f"the share of constant power that modules have in common is 0 to 1, not {self.shared_constant}")


INTEGRATIONS: Final[Mapping[str, Integration]] = {
    "on-package": Integration(link_pj_per_bit=0.54, shared_constant=0.5),
    "on-board": Integration(link_pj_per_bit=10.0),
    "switched": Integration(link_pj_per_bit=20.0),
}
"""The published domains; a switch adds 10 pJ/bit to links on a board (section V.A.2 and V.C)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleEnergy:
    """Energy of `modules` modules that work together, by part, and the time they take; arrays of any one shape [J, s]."""

    modules: Any
    time_s: Array
    dynamic_j: Array
    link_j: Array
    constant_j: Array

    @property
    def energy_j(self) -> Array:
        """All of it [J]."""
        return np.asarray(self.dynamic_j + self.link_j + self.constant_j)


def module_energy(integration: Integration, modules: Any, *, dynamic_j: Any, link_bytes: Any, constant_w: Any, time_s: Any) -> ModuleEnergy:
    """Energy of a run on several modules; arguments are numbers or arrays that go together.

    dynamic_j: instructions, stalls and transactions of all modules [J]; link_bytes: what crosses links, each hop counted [byte];
    constant_w: of one module alone [W]; time_s: of the whole run [s].  Raises CountsError for what cannot be.
    """
    count = np.asarray(modules, dtype=np.float64)
    if not np.all((count >= 1) & (count == np.floor(count)) & np.isfinite(count)):
        raise CountsError("a number of modules is a positive whole number")
    parts = {"dynamic_j": dynamic_j, "link_bytes": link_bytes, "constant_w": constant_w, "time_s": time_s}
    values = {name: np.asarray(value, dtype=np.float64) for name, value in parts.items()}
    for name, value in values.items():
        if not np.all(np.isfinite(value) & (value >= 0)):
            raise CountsError(f"{name} must be finite and not negative")
    one = np.zeros(np.broadcast_shapes(count.shape, *(value.shape for value in values.values())))
    shared = integration.shared_constant
    constant_w = values["constant_w"] * ((1.0 - shared) * count + shared)
    return ModuleEnergy(
        modules=modules,
        time_s=one + values["time_s"],
        dynamic_j=one + values["dynamic_j"],
        link_j=one + np.where(count > 1, values["link_bytes"], 0.0) * BITS * integration.link_pj_per_bit * PICO,
        constant_j=one + constant_w * values["time_s"],
    )


def energy_delay(energy_j: Any, time_s: Any, exponent: float = 1.0) -> Array:
    """EDⁱP: energy times the i-th power of time [J sⁱ]."""
    return np.asarray(np.asarray(energy_j, dtype=np.float64) * np.asarray(time_s, dtype=np.float64) ** exponent)


def scaling_efficiency(one: tuple[Any, Any], several: tuple[Any, Any], modules: Any, exponent: float = 1.0) -> Array:
    """EDⁱPSE of `modules` modules against one, each as (energy [J], time [s]) [%].

    Raises CountsError for what is not positive.
    """
    values = [np.asarray(value, dtype=np.float64) for value in (*one, *several, modules)]
    if not all(np.all(np.isfinite(value) & (value > 0)) for value in values):
        raise CountsError("energies, times and numbers of modules must be positive")
    count = values[-1]
    return np.asarray(PERCENT * energy_delay(*one, exponent) / (count**exponent * energy_delay(*several, exponent)))
