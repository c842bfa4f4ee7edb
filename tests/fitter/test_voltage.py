"""The voltage curve inferred from power: planted curves come back within their stated deviations, from three clocks on."""

from dataclasses import replace

import numpy as np
import pytest

from estimator.model.power import BoardTables
from estimator.vocabulary.gpu import ClockTable
from fitter.power.solver import PRIOR, TERMS, PowerProblem, PowerRows
from fitter.power.voltage import SWITCHING_EXPONENT, infer_voltage

KERNELS = 24
NOISE = 0.02

SWEEPS = {"510-1410": (510.0, 900.0, 1410.0), "900-1410": (900.0, 1155.0, 1410.0), "1000-1980": (1000.0, 1500.0, 1980.0)}
"""Sweeps of three clocks, of which a fit that bounds the knee in absolute clocks refuses all three."""


def planted(clocks: tuple[float, ...], knee: float, slope: float) -> ClockTable:
    """A flat and then rising voltage, 0.8 V where flat."""
    grid = np.linspace(clocks[0], clocks[-1], 60)
    start = knee * clocks[-1]
    value = 0.8 * (1.0 + slope * np.clip((grid - start) / (clocks[-1] - start), 0.0, 1.0))
    return ClockTable(sm_clock_mhz=tuple(grid.tolist()), value=tuple(value.tolist()), source="planted")


def board(voltage: ClockTable | None, clock_mhz: float) -> BoardTables:
    return BoardTables(voltage_v=voltage, idle_w=None, reference_clock_mhz=clock_mhz, power_limit_w=300.0)


def sweep_rows(clocks: tuple[float, ...], voltage: ClockTable, seed: int, kernels: int = KERNELS) -> PowerRows:
    """Kernels at every clock, their power by the planted curve with noise."""
    rng = np.random.default_rng(seed)
    clock = np.tile(clocks, kernels)
    load = np.repeat(rng.uniform(0.1, 1.0, (kernels, len(TERMS) - 2)), len(clocks), axis=0)
    centres = np.array([PRIOR[term][0] for term in TERMS])
    rate = load * (40.0 / centres[:-2]) * 1e12 * (clock / clocks[-1])[:, None]
    count = len(clock)
    rows = PowerRows(
        power_w=np.ones(count),
        clock_mhz=clock,
        event_rate=rate,
        warm_ratio=np.full(count, np.inf),
        busy=np.ones(count),
        temperature_c=np.full(count, np.nan),
        weight=np.ones(count),
        relative_std=np.zeros(count),
        kind=np.repeat(np.arange(kernels), len(clocks)).astype(str),
    )
    tables = board(voltage, clocks[0])
    problem = PowerProblem(rows=rows, tables=tables, warmer_k=np.zeros(count), priors=PRIOR)
    watt = tables.at(clock).idle_w + problem.design(SWITCHING_EXPONENT)[:, : len(TERMS)] @ centres
    return replace(rows, power_w=watt * np.exp(NOISE * rng.standard_normal(count)))


def inferred(clocks: tuple[float, ...], voltage: ClockTable, seed: int = 0) -> tuple[ClockTable, tuple[float, ...]] | None:
    rows = sweep_rows(clocks, voltage, seed)
    return infer_voltage(PowerProblem(rows=rows, tables=board(None, clocks[0]), warmer_k=np.zeros(len(rows.power_w)), priors=PRIOR))


@pytest.mark.parametrize("clocks", SWEEPS.values(), ids=SWEEPS)
def test_three_clocks_tell_the_rise_within_its_stated_deviation(clocks: tuple[float, ...]) -> None:
    true = planted(clocks, knee=0.7, slope=0.25)
    ends = np.array([clocks[0], clocks[-1]])
    pulls = []
    for seed in range(4):
        found = inferred(clocks, true, seed)
        assert found is not None
        table, std_v = found
        low, high = table.at(ends)
        wanted = float(np.divide(*true.at(ends)[::-1]))
        deviation = float(np.hypot(std_v[0], std_v[-1]))
        assert 0.002 < deviation < 0.08
        pulls.append((high / low - wanted) / deviation)
    assert np.sqrt(np.mean(np.square(pulls))) < 2.0


def test_the_knee_between_two_clocks_is_less_certain_than_the_rise_at_them() -> None:
    clocks = SWEEPS["510-1410"]
    found = inferred(clocks, planted(clocks, knee=0.8, slope=0.3))
    assert found is not None
    table, std_v = found
    at = dict(zip(table.sm_clock_mhz, std_v, strict=True))
    between = [std for clock, std in at.items() if 950.0 < clock < 1350.0]
    assert max(between) > 1.2 * at[clocks[-1]]


@pytest.mark.parametrize("clocks", [(900.0, 1410.0), (1400.0, 1405.0, 1410.0)])
def test_fewer_than_three_different_clocks_tell_nothing(clocks: tuple[float, ...]) -> None:
    assert inferred(clocks, planted((900.0, 1410.0), knee=0.7, slope=0.3)) is None


def test_power_that_does_not_rise_beyond_the_clock_is_no_voltage() -> None:
    clocks = SWEEPS["510-1410"]
    assert inferred(clocks, planted(clocks, knee=0.7, slope=0.0)) is None
