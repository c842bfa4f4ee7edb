"""Block-count models in a bundle: the section, its table, and its errors on unseen grids."""

import math
from typing import Any, Final

import numpy as np

from estimator.blocks.model import FORMS, models_from_section, section_of
from estimator.bundle.content import Bundle
from estimator.vocabulary.gpu import GpuSpec
from fitter.blocks.model import fit_block_models
from fitter.errors import CalibrationError
from fitter.rows.block_table import BlockRows
from fitter.rows.columns import Selection
from fitter.validate.predictions import PERCENT, ErrorRow, errors_of
from fitter.validate.tables import Shown

FAMILY: Final = "blocks"


def block_section(selection: Selection, gpu: GpuSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Section `block_models`, and the kernels without a model with the reason; empty without grids.

    Raises CalibrationError if no model can be fitted and nothing else was measured.
    """
    if selection.blocks is None:
        return {}, ()
    fit = fit_block_models(selection.blocks, gpu.num_sms)
    if not fit.models and not selection.tables and selection.instructions is None:
        raise CalibrationError(fit.refused[0])
    return section_of(fit.models), tuple(f"no block-count model: {reason}" for reason in fit.refused)


def block_table(bundle: Bundle) -> Shown:
    """Table of the models: coefficients, and errors of each form on left-out grids."""
    rows = []
    for name, model in models_from_section(bundle.block_models, f"bundle {bundle.name}: block_models").items():
        errors = [PERCENT * model.scatter.get(form, {}).get(what, math.nan) for form in FORMS for what in ("time", "energy")]
        rows.append((name, model.round_s(), float(model.energies[0]) if model.has_power else math.nan, *errors))
    heads = (f"{form}, {what} [%]" for form in FORMS for what in ("time", "energy"))
    return Shown(title="Block-count models, with errors on grids left out", head=("model", "round [s]", "block [J]", *heads), rows=rows)


def block_errors(bundle: Bundle, rows: BlockRows) -> tuple[list[ErrorRow], tuple[str, ...]]:
    """Errors of latency and power by kernel, form "occupancy", and a remark on kernels without a model."""
    models = models_from_section(bundle.block_models, f"bundle {bundle.name}: block_models").values()
    own = rows.select(rows.gpu == bundle.gpu.name)
    found, missing = [], dict.fromkeys(own.kernel.tolist())
    for model in models:
        clock = np.round(own.sm_clock_mhz) == np.round(model.sm_clock_mhz)
        if not np.isfinite(model.sm_clock_mhz):
            clock = np.isnan(own.sm_clock_mhz)
        same = (own.kernel == model.kernel) & (own.block_threads == model.block_threads) & clock
        if not same.any():
            continue
        missing.pop(model.kernel, None)
        chosen = own.select(same)
        time = model.latency_s(chosen.blocks)
        latency = errors_of(chosen.latency_s, time, model.latency_std_s(chosen.blocks) / time)
        power = None
        if model.has_power and np.isfinite(chosen.power_w).any():
            energy = model.energy_j(chosen.blocks)
            power = errors_of(chosen.power_w, energy / time, model.energy_std_j(chosen.blocks) / energy)
        operator = f"{model.kernel}/{model.block_threads}"
        count = len(chosen)
        found.append(ErrorRow(gpu=bundle.gpu.name, family=FAMILY, operator=operator, precision="–", n=count, latency=latency, power=power))
    remarks = (f"no block-count model of {', '.join(map(str, missing))} at these clocks; their grids are not compared",) if missing else ()
    return found, remarks
