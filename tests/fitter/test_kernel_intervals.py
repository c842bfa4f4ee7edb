"""Intervals of kernels: what is uncertain about the latency is uncertain about the power."""

from dataclasses import replace

import numpy as np

from estimator.engine.kernel_table import predict_kernels
from estimator.model.residuals import log_power_corrections
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.specifications import load_gpu
from fitter.latency.groups import fit_kernel_groups
from fitter.power.tier import with_power_tiers
from tests.fitter.measured import kernel_rows, planted_bundle, various_operators

A100 = load_gpu("a100-pcie-40gb")


def test_a_less_certain_latency_makes_power_less_certain_but_never_more_than_its_own_share():
    operators = [o for o in various_operators(160, seed=3) if o.family == "softmax"]
    rows = kernel_rows(planted_bundle(), operators, noise=0.02)
    fit = fit_kernel_groups(rows, A100, seed=0)
    planted = planted_bundle()
    groups = {key: replace(planted.groups["softmax"], coefficients=one.coefficients, rows=one.rows) for key, one in fit.groups.items()}
    bundle = with_power_tiers(replace(planted, groups=groups, residuals=fit.residuals), rows, seed=0)
    wide = {key: FrozenMapping({**tier, "near": 9.0 * tier["near"], "far": 9.0 * tier["far"]}) for key, tier in bundle.residuals.items()}

    def predicted(residuals):
        changed = replace(bundle, residuals=residuals)
        return predict_kernels(rows.row_operators(), changed, A100, sm_clock_mhz=rows.sm_clock_mhz, warm=rows.l2_warm)

    narrow, loose = predicted(bundle.residuals), predicted(FrozenMapping(wide))
    own = log_power_corrections(rows.row_operators(), narrow.groups, bundle.residuals, narrow.power_w)[1]
    known = np.isfinite(narrow.power_ln_std)
    assert known.mean() > 0.5
    assert np.all(narrow.power_ln_std[known] >= own[known])
    assert np.all(loose.power_ln_std[known] > narrow.power_ln_std[known])
    assert np.all(loose.power_ln_std[known] <= np.hypot(own, loose.latency_ln_std)[known] * (1 + 1e-12))
