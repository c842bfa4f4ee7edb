"""Kernels against NumPy, written from what they are meant to compute and not from their text."""

from dataclasses import replace
from math import erf, exp, log, sqrt

import numpy as np

from tests.microbench.executed import executed_results, filled_buffers
from tests.microbench.kernels import kernel_named

TURNS = 3


def prepared(name):
    kernel = kernel_named(name)
    return kernel, replace(kernel.check_launch(), iterations=TURNS)


def blocks_of(values, launch):
    """Shape (blocks, turns that fit a region, threads)."""
    return values.reshape(launch.blocks, -1, launch.threads_per_block)


def test_option_prices_are_those_of_black_and_scholes():
    kernel, launch = prepared("black_scholes_128")
    inputs = filled_buffers(kernel, launch)
    results = executed_results(kernel, launch)
    price, strike, years = (blocks_of(inputs[name]["value"], launch)[0, 0].astype(float) for name in ("prices", "strikes", "terms"))
    for place in range(0, 128, 17):
        root = 0.30 * sqrt(years[place])
        one = (log(price[place] / strike[place]) + (0.02 + 0.5 * 0.30**2) * years[place]) / root
        n_one, n_two = (0.5 * (1.0 + erf(d / sqrt(2.0))) for d in (one, one - root))
        discounted = strike[place] * exp(-0.02 * years[place])
        call = price[place] * n_one - discounted * n_two
        assert np.isclose(results["calls"]["value"][place], call, atol=2e-4)
        assert np.isclose(results["puts"]["value"][place], call - price[place] + discounted, atol=2e-4)


def test_heat_spreads_on_the_plate():
    kernel, launch = prepared("hotspot_16")
    inputs = filled_buffers(kernel, launch)
    heat = blocks_of(inputs["heats"]["value"], launch)[:, 0].reshape(-1, 16, 16).astype(np.float64)
    power = blocks_of(inputs["powers"]["value"], launch).reshape(launch.blocks, -1, 16, 16)
    for turn in range(TURNS):
        padded = np.pad(heat, ((0, 0), (1, 1), (1, 1)), mode="edge")
        around = padded[:, :-2, 1:-1] + padded[:, 2:, 1:-1] + padded[:, 1:-1, :-2] + padded[:, 1:-1, 2:]
        heat = heat + 0.1 * (around - 4 * heat) + 0.01 * (80.0 - heat) + power[:, turn]
    assert np.allclose(executed_results(kernel, launch)["result"]["heat"].reshape(heat.shape), heat, rtol=1e-5)
