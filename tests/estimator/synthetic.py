"""Small workloads, single kernels and a bundle with known coefficients, for laws that need no measurement."""

import math

import numpy as np

from estimator import Workload, make_operator, merge_operators
from estimator.model.coefficients import CoefficientTable, group_key
from estimator.model.lowering import KnownTiles, lower
from estimator.model.power import BoardTables
from estimator.model.timeline import LAUNCH_OVERLAP_EXPONENT
from fitter.bundle.sections import runs_bundle
from fitter.latency.runs import WIDTHS, Host, LatencyFit, prior_groups
from fitter.power.coefficients import PowerFit
from fitter.power.solver import PRIOR, TERMS

HOST_LAUNCH_S = 30e-6


def transformer(tokens, width, layers, name="transformer", family="synthetic"):
    """Linear layers, attention products and memory kernels of a decoder, eager."""
    heads = width // 64
    layer = [
        make_operator("norm", "layernorm", "bf16", rows=tokens, dim=width),
        matmul(tokens, 3 * width, width),
        matmul(tokens, tokens, 64, operator="bmm", batch=heads),
        make_operator("softmax", "softmax", "bf16", rows=heads * tokens, dim=tokens),
        matmul(tokens, 64, tokens, operator="bmm", batch=heads),
        make_operator("copy", "contiguous", "bf16", elements=tokens * width, reads=tokens * width, host_share=0.3),
        matmul(tokens, width, width),
        addition(tokens * width),
        matmul(tokens, 4 * width, width),
        make_operator("elementwise", "gelu", "bf16", elements=4 * tokens * width, reads=4 * tokens * width),
        matmul(tokens, width, 4 * width),
    ]
    operators, counts = merge_operators(layer * layers)
    return Workload(name=name, operators=operators, counts=counts, model_family=family)


def tables_of(gpu, clock_mhz=900.0):
    """A board's own tables, at a reference clock."""
    return BoardTables(gpu=gpu, voltage_v=gpu.voltage_v, idle_w=gpu.idle_w, reference_clock_mhz=clock_mhz)


def known_bundle(gpu, groups=None, energies=None, host=None):
    """A bundle at the centre of the priors, or with given coefficients."""
    latency = LatencyFit(
        groups=groups or prior_groups(),
        host=host or Host(HOST_LAUNCH_S, LAUNCH_OVERLAP_EXPONENT),
        widths=WIDTHS,
        log_shift=np.zeros(len(WIDTHS)),
        covariance=np.eye(len(WIDTHS)) * 0.01,
        scales={},
        run_scale=np.ones(1),
    )
    values = np.array([PRIOR[term][0] for term in TERMS]) if energies is None else energies
    power = PowerFit(
        values=values,
        covariance=np.eye(len(TERMS)),
        exponent=3.0,
        tables=tables_of(gpu),
        rows=1,
    )
    return runs_bundle(gpu, latency, power, clocks_mhz=(gpu.sm_clock_min_mhz, gpu.sm_clock_limit_mhz), rows=1)


def phases_of(operator, gpu, tile_m=math.nan, tile_n=math.nan, split=math.nan):
    """Phases of one kernel at the priors' coefficients, with a given tile or the fastest one."""
    known = KnownTiles(tile_m=np.array([tile_m]), tile_n=np.array([tile_n]), split=np.array([split]))
    return lower([operator], gpu, prior_rows([operator]), known)


def prior_rows(operators):
    """The priors' coefficients of kernels, shape (n, ·)."""
    return CoefficientTable(prior_groups()).rows(map(group_key, operators))[0]


def convolution(kernel, precision="bf16", **sizes):
    """A convolution of 8 images of 64 × 64 pixels with 64 channels and filters, unless stated otherwise."""
    usual = {"batch": 8, "channels": 64, "height": 64, "width": 64, "filters": 64, "stride": 1, "padding": 0, "groups": 1}
    return make_operator("conv", "conv2d", precision, kernel_h=kernel, kernel_w=kernel, **usual | sizes)


def attention(queries, precision="bf16", kind="prefill", **sizes):
    """Causal attention of 8 heads of 64 over as many keys as queries, unless stated otherwise."""
    usual = {"batch": 1, "context": queries, "heads": 8, "kv_heads": 8, "head_dim": 64, "window": 0, "causal": 1}
    return make_operator("attention", kind, precision, queries=queries, **usual | sizes)


def matmul(m, n, k, precision="bf16", *, operator="linear", batch=1, **details):
    """A matrix product, that of a linear layer unless stated otherwise."""
    return make_operator("gemm", operator, precision, batch=batch, m=m, n=n, k=k, **details)


def addition(elements, precision="bf16"):
    """The sum of two tensors."""
    return make_operator("elementwise", "add", precision, elements=elements, reads=2 * elements)


def workload_of(*operators, counts=(), name="one"):
    """A workload of these kernels, each once unless counts are given."""
    return Workload(name=name, operators=operators, counts=counts or (1.0,) * len(operators))
