"""Where coefficients start: one physics for kernels measured alone and inside runs, and from board to board."""

import numpy as np
import pytest

from estimator import load_gpu
from estimator.model.coefficients import coefficient_vector, group_key
from estimator.model.lowering import lower
from estimator.model.power import tensor_rate
from estimator.model.timeline import kernel_seconds
from estimator.vocabulary.quantities import HZ_PER_MHZ
from fitter.latency.runs import MATRIX_GROUPS, prior_groups
from fitter.priors import kernel_priors
from tests.estimator.synthetic import addition, matmul

ALIKE = ("a100-pcie-40gb", "a10", "l4", "t4", "v100-pcie-32gb")
"""Boards of four architectures whose matrix products have no persistent blocks; an SM's rate is 512, 1,024 or 2,048 flop per clock."""


@pytest.mark.parametrize("group", MATRIX_GROUPS)
def test_filling_a_pipeline_takes_as_many_clocks_on_every_board(group):
    rates = [tensor_rate(load_gpu(name)) for name in ALIKE]
    clocks = [prior_groups(load_gpu(name))[group]["prologue"] / rate for name, rate in zip(ALIKE, rates, strict=True)]
    assert len(set(rates)) > 1
    assert clocks == pytest.approx([clocks[0]] * len(ALIKE))


def seconds(operator, coefficients, clock_mhz=900.0):
    """GPU time of an operator on an A100."""
    table = np.array([coefficient_vector(coefficients)])
    phases = lower([operator], load_gpu("a100-pcie-40gb"), table)
    return float(kernel_seconds(phases, table, clock_mhz * HZ_PER_MHZ)[0])


def alone(operator):
    """Priors of an operator that was measured alone, at several locked clocks."""
    gpu = load_gpu("a100-pcie-40gb")
    return kernel_priors(group_key(operator), gpu, cuda_cores=False, warm=False, one_clock=False)


@pytest.mark.parametrize("elements", [1e4, 1e6, 1e8])
def test_a_memory_kernel_is_expected_to_take_as_long_in_a_run_as_alone(elements):
    operator = addition(elements)
    own = {name: prior.centre for name, prior in alone(operator).items()}
    assert seconds(operator, prior_groups(load_gpu("a100-pcie-40gb"))["elementwise"]) == pytest.approx(seconds(operator, own))


def test_phases_of_a_product_overlap_in_a_run_as_they_do_alone():
    operator = matmul(1024, 1024, 1024)
    assert prior_groups(load_gpu("a10"))["gemm"]["exponent"] == alone(operator)["exponent"].centre
