"""Several GPU modules as one: energy over links, constant energy shared, and how well energy and delay scale.

    E_N = E_dynamic + b_link · 8 · L + P_const T_N ((1 − s) N + s)

L is the energy of a bit on a link and s the share of constant power that all modules have in common.  Energy-delay product
EDⁱP = E Tⁱ; its scaling efficiency EDⁱPSE = 100 EDⁱP_1 / (Nⁱ EDⁱP_N), which is 100 % for a linear speed-up at constant energy.
Source: Arunkumar et al., GPUJoule (HPCA 2019), eq. 1 to 3 and section V.A.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from estimator.vocabulary.errors import CountsError


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


def link_j(integration: Integration, modules: int, link_bytes: float) -> float:
    """Energy of what crosses links, each hop counted [J]; none on one module."""
    return link_bytes * 8 * integration.link_pj_per_bit * 1e-12 if modules > 1 else 0.0


def shared_constant_w(integration: Integration, modules: int, constant_w: float) -> float:
    """Constant power of all modules from that of one alone [W]."""
    shared = integration.shared_constant
    return constant_w * ((1.0 - shared) * modules + shared)


def energy_delay(energy_j: float, time_s: float, exponent: float = 1.0) -> float:
    """EDⁱP: energy times the i-th power of time [J sⁱ]."""
    return energy_j * math.pow(time_s, exponent)


def scaling_efficiency(one: tuple[float, float], several: tuple[float, float], modules: int, exponent: float = 1.0) -> float:
    """EDⁱPSE of `modules` modules against one, each as (energy [J], time [s]) [%]."""
    return 100.0 * energy_delay(*one, exponent) / (math.pow(modules, exponent) * energy_delay(*several, exponent))
