"""Kernels against NumPy, written from what they are meant to compute and not from their text."""

from dataclasses import replace
from math import erf, exp, log, sqrt

import numpy as np

from microbench.numbers import decode
from tests.microbench.executed import executed_results, filled_buffers
from tests.microbench.kernels import kernel_named

TURNS = 3


def prepared(name):
    kernel = kernel_named(name)
    return kernel, replace(kernel.check_launch(), iterations=TURNS)


def blocks_of(values, launch):
    """Shape (blocks, turns that fit a region, threads)."""
    return values.reshape(launch.blocks, -1, launch.threads_per_block)


def test_tensor_products_add_one_product():
    kernel, launch = prepared("mma_bf16")
    inputs = filled_buffers(kernel, launch)["operands"]
    a = np.stack([decode(inputs[f"a{place}"], "bf16x2").reshape(-1, 2) for place in range(4)], axis=1)
    b = np.stack([decode(inputs[f"b{place}"], "bf16x2").reshape(-1, 2) for place in range(2)], axis=1)
    left, right = np.zeros((16, 16)), np.zeros((16, 8))
    for lane in range(32):
        for register in range(4):
            for half in range(2):
                left[lane // 4 + 8 * (register % 2), lane % 4 * 2 + half + 8 * (register // 2)] = a[lane, register, half]
        for register in range(2):
            for half in range(2):
                right[lane % 4 * 2 + half + 8 * register, lane // 4] = b[lane, register, half]
    got = executed_results(kernel, launch)["results"]["c2_3"][:32]
    want = [(left @ right)[lane // 4 + 8, lane % 4 * 2 + 1] for lane in range(32)]
    assert np.allclose(got, np.array(want) + inputs["c2_3"][:32], atol=1e-4)


def test_warpgroup_products_are_those_of_the_tiles_in_memory():
    kernel, launch = prepared("wgmma_f16_n64")
    values = decode(filled_buffers(kernel, launch)["tiles"]["pair"], "f16x2")

    def element(first, rows, step, row, depth):
        core = (depth // 8) * (rows // 8) + row // 8
        return float(values[first + step * rows * 16 + core * 64 + row % 8 * 8 + depth % 8])

    row, column = 16 * 2 + 5 + 8, 9
    products = [sum(element(0, 64, step, row, k) * element(4 * 64 * 16, 64, step, column, k) for k in range(16)) for step in range(4)]
    turn = products[0] - products[1] + products[2] - products[3]
    # Row 45: third warp, lane 4·5 + 0, upper eight rows; column 9: second group of eight, odd.
    got = executed_results(kernel, launch)["results"]["c7"][2 * 32 + 20]
    assert np.isclose(got, TURNS * turn + products[0], rtol=1e-5)


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
