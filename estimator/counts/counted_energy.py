"""Energy of counted kernels, by part, on one module or on several: GPUJoule's equation 4 with stated errors.

Several GPU modules as one: energy of links, shared constant energy, and the scaling of energy and delay.

    E_N = E_dynamic + b_link · 8 · L + P_const T_N ((1 − s) N + s)

b_link is the energy of a bit on a link, L the bytes over links, s the share of constant power that modules share.  Energy-delay product
EDⁱP = E Tⁱ; its scaling efficiency EDⁱPSE = 100 EDⁱP_1 / (Nⁱ EDⁱP_N), which is 100 % for a linear speed-up at constant energy.
Source: Arunkumar et al., GPUJoule (HPCA 2019), eq. 1 to 3 and section V.A.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from estimator.counts.activities import CountedKernel, EnergyTable
from estimator.counts.energies import CONSTANT, HEAT, STALL, TRANSACTION, InstructionEnergies
from estimator.counts.opcodes import RARE
from estimator.vocabulary.errors import CountsError
from estimator.vocabulary.values import frozen

PARTS: Final = ("instructions", "stalls", "shared", "l1", "l2", "dram", "link", "constant")
"""Parts of the energy; instructions include their issue, constant is the board's power at rest and its additional power while it works."""


@frozen
class Integration:
    """Integration of modules: energy of a bit on a link [pJ/bit], and the share of constant power that modules share [1]."""

    link_pj_per_bit: float
    shared_constant: float = 0.0


INTEGRATIONS: Final = {
    "on-package": Integration(link_pj_per_bit=0.54, shared_constant=0.5),
    "on-board": Integration(link_pj_per_bit=10.0),
    "switched": Integration(link_pj_per_bit=20.0),
}
"""The published domains; a switch adds 10 pJ/bit to links on a board (section V.A.2 and V.C)."""


@frozen
class CountedEnergy:
    """All launches of a kernel, or of several: time [s], energy and its standard deviation [J], and the energy by part [J].

    complete: whether a total holds all work, as far as known.
    """

    name: str
    launches: float
    time_s: float
    energy_j: float
    energy_std_j: float
    parts_j: Mapping[str, float]
    complete: bool = True

    @property
    def power_w(self) -> float:
        """Mean power [W]."""
        return self.energy_j / self.time_s

    def energy_delay(self, exponent: float) -> float:
        """EDⁱP: energy times the i-th power of time [J sⁱ]."""
        return self.energy_j * math.pow(self.time_s, exponent)


def scaling(one: CountedEnergy, several: CountedEnergy, modules: int, exponent: float) -> dict[str, float]:
    """Speed-up, energy ratio and EDⁱPSE [%] of `modules` modules relative to one."""
    return {
        "speedup": one.time_s / several.time_s,
        "energy_ratio": several.energy_j / one.energy_j,
        "scaling_efficiency_percent": 100.0 * one.energy_delay(exponent) / (math.pow(modules, exponent) * several.energy_delay(exponent)),
    }


def counted_energies(
    kernels: Sequence[CountedKernel],
    table: EnergyTable,
    *,
    constant_w: float = math.nan,
    modules: int = 1,
    integration: Integration | None = None,
) -> tuple[tuple[CountedEnergy, ...], CountedEnergy, tuple[str, ...]]:
    """Energy of each kernel, their total, and warnings.

    constant_w: power of one module at rest [W], replaces the table's; modules, and integration, for a run on several.
    Raises CountsError without that power, for classes of unknown energy, and for several modules without an integration.
    """
    constant_w = constant_w if math.isfinite(constant_w) else table.constant_w
    if not math.isfinite(constant_w):
        raise CountsError(f"{table.name} has no constant power; give that of the board at rest with --constant-w")
    if modules > 1 and integration is None:
        raise CountsError(f"{modules} modules: say with --integration how they hang together")
    together = integration if modules > 1 and integration else Integration(link_pj_per_bit=0.0)
    warnings, lacking = _foreign(kernels, table), _lacking(kernels, table)
    rows, weights = [], []
    spread: dict[str, float] = {}
    for kernel in kernels:
        row, weight, own = _energy(kernel, table, constant_w, modules, together)
        rows.append(row)
        weights.append(weight)
        for name, std in own.items():
            spread[name] = spread.get(name, 0.0) + std
    total = CountedEnergy(
        name="total",
        **{name: math.fsum(getattr(row, name) for row in rows) for name in ("launches", "time_s", "energy_j")},
        energy_std_j=_std(table.energies, np.sum(weights, axis=0), spread.values()),
        parts_j={part: math.fsum(row.parts_j[part] for row in rows) for part in PARTS},
        complete=not lacking,
    )
    return tuple(rows), total, (*warnings, *lacking)


def _energy(
    kernel: CountedKernel, table: EnergyTable, constant_w: float, modules: int, integration: Integration
) -> tuple[CountedEnergy, Any, Mapping[str, float]]:
    energies, launches = table.energies, kernel.launches
    boards = (1.0 - integration.shared_constant) * modules + integration.shared_constant
    times = [boards if _part(term) == "constant" else 1.0 for term in energies.terms]
    weights = energies.weights(kernel.activity) * launches * times
    time_s = kernel.activity.time_s * launches
    spread = {name: std * launches * (boards if name == CONSTANT else 1.0) for name, std in energies.spread_j(kernel.activity).items()}
    parts = dict.fromkeys(PARTS, 0.0)
    for term, joule in zip(energies.terms, (weights * energies.values).tolist(), strict=True):
        parts[_part(term)] += joule
    parts["link"] = kernel.link_bytes * launches * 8 * integration.link_pj_per_bit * 1e-12
    parts["constant"] += constant_w * boards * time_s
    row = CountedEnergy(
        name=kernel.name,
        launches=launches,
        time_s=time_s,
        energy_j=math.fsum(parts.values()),
        energy_std_j=_std(energies, weights, spread.values()),
        parts_j=parts,
    )
    return row, weights, spread


def _std(energies: InstructionEnergies, weights: Any, spread_j: Iterable[float]) -> float:
    """Standard deviation of an energy: from the terms, the scatter, and classes priced as others [J]; nan if unknown."""
    scatter = energies.scatter * float(weights @ energies.values)
    return math.hypot(math.sqrt(max(0.0, float(weights @ energies.covariance @ weights))), scatter, *spread_j) or math.nan


def _part(term: str) -> str:
    if term.startswith(TRANSACTION):
        return term.removeprefix(TRANSACTION)
    return {CONSTANT: "constant", HEAT: "constant", STALL: "stalls"}.get(term, "instructions")


def _foreign(kernels: Sequence[CountedKernel], table: EnergyTable) -> list[str]:
    """Remarks on classes without their own energy.  Raises CountsError if no other energy can replace it."""
    energies = table.energies
    counted = sorted({name for kernel in kernels for name in kernel.activity.instructions})
    prices = {name: energies.price(name).name for name in counted}
    if missing := [name for name, price in prices.items() if not price]:
        raise CountsError(f"{table.name} has no energy of {', '.join(missing[:8])}; it knows {', '.join(energies.classes)}")
    rare = [name for name, price in prices.items() if price == RARE != name]
    warnings = [f"no energy of their own, taken at that of rare ones: {', '.join(rare[:8])}"] if rare else []
    doubtful = {name: energies.doubt(name) for name in counted if name not in rare and energies.doubt(name)}
    return [*warnings, *(f"energy of {name} is of low confidence: {doubt}" for name, doubt in doubtful.items())]


def _lacking(kernels: Sequence[CountedKernel], table: EnergyTable) -> list[str]:
    """Work that the energy lacks."""
    terms = table.energies.terms
    lacking = {
        "no energy of transactions of": {
            level for one in kernels for level in one.activity.transactions if TRANSACTION + level not in terms
        },
        "no energy of": {"stalls" for one in kernels if one.activity.stalls and STALL not in terms},
        "not counted:": {name for one in kernels for name in one.missing},
    }
    return [f"{what} {', '.join(sorted(names))}; taken as none" for what, names in lacking.items() if names]
