"""The voltage curve inferred from power: planted curves come back within their stated deviations, from three clocks on."""

from dataclasses import replace

import numpy as np
import pytest

from estimator import load_gpu
from estimator.model.power import SWITCHING_EXPONENT, BoardTables
from estimator.vocabulary.gpu import ClockTable
from fitter.power.solver import PRIOR, TERMS, PowerProblem
from fitter.power.voltage import infer_voltage
from tests.fitter.measured import power_rows

KERNELS = 24
NOISE = 0.02

SWEEPS = {"510-1410": (510.0, 900.0, 1410.0), "900-1410": (900.0, 1155.0, 1410.0), "1000-1980": (1000.0, 1500.0, 1980.0)}
"""Sweeps of three clocks, of which a fit that bounds the knee in absolute clocks refuses all three."""


def planted(clocks, knee, slope):
    """A flat and then rising voltage, 0.8 V where flat."""
    grid = np.linspace(clocks[0], clocks[-1], 60)
    start = knee * clocks[-1]
    value = 0.8 * (1.0 + slope * np.clip((grid - start) / (clocks[-1] - start), 0.0, 1.0))
    return ClockTable(sm_clock_mhz=tuple(grid.tolist()), value=tuple(value.tolist()), source="planted")


def board(voltage, clock_mhz):
    return BoardTables(gpu=load_gpu("a100-pcie-40gb"), voltage_v=voltage, idle_w=None, reference_clock_mhz=clock_mhz)


def sweep_rows(clocks, voltage, seed):
    """Kernels at every clock, their power by the planted curve with noise."""
    rng = np.random.default_rng(seed)
    clock = np.tile(clocks, KERNELS)
    load = np.repeat(rng.uniform(0.1, 1.0, (KERNELS, len(TERMS) - 2)), len(clocks), axis=0)
    centres = np.array([PRIOR[term][0] for term in TERMS])
    rate = load * (40.0 / centres[:-2]) * 1e12 * (clock / clocks[-1])[:, None]
    count = len(clock)
    rows = power_rows(clock, event_rate=rate, kind=np.repeat(np.arange(KERNELS), len(clocks)).astype(str))
    tables = board(voltage, clocks[0])
    problem = PowerProblem(rows=rows, tables=tables, warmer_k=np.zeros(count), priors=PRIOR)
    watt = tables.at(clock).idle_w + problem.design(SWITCHING_EXPONENT)[:, : len(TERMS)] @ centres
    return replace(rows, power_w=watt * np.exp(NOISE * rng.standard_normal(count)))


def inferred(clocks, voltage, seed=0, **changed):
    rows = replace(sweep_rows(clocks, voltage, seed), **changed)
    return infer_voltage(PowerProblem(rows=rows, tables=board(None, clocks[0]), warmer_k=np.zeros(len(rows.power_w)), priors=PRIOR))


@pytest.mark.parametrize("clocks", SWEEPS.values(), ids=SWEEPS)
def test_three_clocks_tell_the_rise(clocks):
    true = planted(clocks, knee=0.7, slope=0.25)
    ends = np.array([clocks[0], clocks[-1]])
    wanted = float(np.divide(*true.at(ends)[::-1]))
    found = [table.at(ends) for seed in range(4) if (table := inferred(clocks, true, seed)) is not None]
    assert [high / low for low, high in found] == pytest.approx([wanted] * 4, abs=0.08)


@pytest.mark.parametrize("clocks", [(900.0, 1410.0), (1400.0, 1405.0, 1410.0)])
def test_fewer_than_three_different_clocks_tell_nothing(clocks):
    assert inferred(clocks, planted((900.0, 1410.0), knee=0.7, slope=0.3)) is None


def test_clocks_that_nobody_locked_tell_nothing():
    """A limit lowers the clock of some kernels only: their energies and the voltage cannot be told apart."""
    clocks = SWEEPS["510-1410"]
    assert inferred(clocks, planted(clocks, knee=0.7, slope=0.3), asked_mhz=np.full(KERNELS * len(clocks), np.nan)) is None


def test_power_that_does_not_rise_beyond_the_clock_is_no_voltage():
    clocks = SWEEPS["510-1410"]
    assert inferred(clocks, planted(clocks, knee=0.7, slope=0.0)) is None
