"""Costs of energy: kilowatt-hours, money and carbon of a thousand requests, tokens per joule."""

import math
from dataclasses import dataclass

import numpy as np

from estimator.questions.points import Sweep
from estimator.vocabulary.errors import OperatingPointError
from estimator.vocabulary.quantities import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """Price and emissions of a kilowatt-hour at the meter, and the site's overhead over the GPU.

    price_per_kwh     in any currency; nan: not requested
    carbon_g_per_kwh  emissions of the grid [g/kWh]; nan: not requested
    overhead          energy of the whole site over that of the GPU (power usage effectiveness, losses, host); at least 1

    Raises OperatingPointError for impossible values.
    """

    price_per_kwh: float = math.nan
    carbon_g_per_kwh: float = math.nan
    overhead: float = 1.0

    def __post_init__(self) -> None:
        for name in ("price_per_kwh", "carbon_g_per_kwh"):
            value = getattr(self, name)
            if value < 0.0 or math.isinf(value):
                raise OperatingPointError(f"{name} = {value!r} must be zero or a positive number")
        if not 1.0 <= self.overhead < math.inf:
            raise OperatingPointError(f"overhead = {self.overhead!r} must be a number of at least 1")


def cost_columns(points: Sweep, tariff: Tariff | None = None, *, requests: float = 0.0, tokens: float = 0.0) -> dict[str, Array]:
    """COST_COLUMNS of every point, shape (n,); nan if requests, tokens or a price are unknown.

    requests, tokens: served and computed by one iteration; 0: each case's batch and tokens, if known.
    kwh_per_1000 is energy of the GPU times the tariff's overhead for a thousand requests; its relative uncertainty is that of energy_j.

    Raises OperatingPointError for impossible numbers of requests or tokens.
    """
    tariff = tariff or Tariff()
    served = _each(points, "batch", requests)
    computed = _each(points, "tokens", tokens)
    # Energy of 1000 requests; a kilowatt-hour is 3.6 MJ.
    kwh = points.energy_j / served * 1000.0 * tariff.overhead / 3.6e6
    return {
        "requests": served,
        "tokens": computed,
        "latency_per_request_s": points.latency_s / served,
        "energy_per_request_j": points.energy_j / served,
        "tokens_per_s": computed / points.latency_s,
        "tokens_per_j": computed / points.energy_j,
        "kwh_per_1000": kwh,
        "cost_per_1000": kwh * tariff.price_per_kwh,
        "carbon_kg_per_1000": kwh * tariff.carbon_g_per_kwh / 1000.0,
    }


def _each(points: Sweep, field: str, given: float) -> Array:
    """A number for every point: the given one, else the case's; nan if unknown."""
    if not 0.0 <= given < math.inf:
        raise OperatingPointError(f"{field} = {given!r} must be a positive number")
    known = np.array([given or float(getattr(case, field)) for case in points.cases])
    return np.where(known > 0.0, known, np.nan)[points.case]
