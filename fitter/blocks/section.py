"""Block-count models in a bundle: the section, its table, and its errors on unseen grids."""

import math
from dataclasses import astuple
from typing import Any, Final

import numpy as np

from estimator.blocks.model import FORMS, models_from_section, section_of
from estimator.bundle.content import Bundle, HeldOut
from estimator.vocabulary.gpu import GpuSpec
from fitter.blocks.model import fit_block_models
from fitter.errors import CalibrationError
from fitter.rows.columns import BlockRows, Selection
from fitter.validate.predictions import PERCENT, error_rows, unmeasured_rows
from fitter.validate.tables import Shown

FAMILY: Final = "blocks"


def block_section(selection: Selection, gpu: GpuSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Section `block_models`, and the kernels without a model with the reason; empty without grids.

    Raises CalibrationError if no model can be fitted and nothing else was measured.
    """
    if selection.blocks is None:
        return {}, ()
    models, refused = fit_block_models(selection.blocks, gpu.num_sms)
    if not models and len(selection.parts) == 1:
        raise CalibrationError(refused[0])
    return section_of(models), tuple(f"no block-count model: {reason}" for reason in refused)


def block_tables(bundle: Bundle) -> tuple[Shown, Shown]:
    """Tables of the models: coefficients with errors of each form on left-out grids; and worst, best and average errors as published."""
    rows, relative = [], []
    for name, model in models_from_section(bundle.block_models, f"bundle {bundle.name}: block_models").items():
        errors = [PERCENT * model.scatter.get(form, {}).get(what, math.nan) for form in FORMS for what in ("time", "energy")]
        for form, own in model.relative_errors.items():
            relative.append((name, form, *(PERCENT * one for what in ("time", "energy") for one in astuple(own[what]))))
        rows.append((name, model.round_s(), float(model.energies[0]) if model.has_power else math.nan, *errors))
    heads = (f"{form}, {what} [%]" for form in FORMS for what in ("time", "energy"))
    title = "WRE, BRE and ARE of these grids (Boughzala et al., section VI) [%]"
    names = (f"{what}, {name}" for what in ("time", "energy") for name in ("WRE", "BRE", "ARE"))
    return (
        Shown(title="Block-count models, with errors on grids left out", head=("model", "round [s]", "block [J]", *heads), rows=rows),
        Shown(title=title, head=("model", "form", *names), rows=relative),
    )


def block_errors(bundle: Bundle, rows: BlockRows) -> tuple[list[HeldOut], tuple[str, ...]]:
    """Errors of latency and power by kernel, form "occupancy", and a remark on kernels without a model."""
    models = models_from_section(bundle.block_models, f"bundle {bundle.name}: block_models").values()
    own = rows.select(np.array(rows.row_gpus) == bundle.gpu.name)
    kernels = [f"{kernel}/{threads:g}" for kernel, threads in zip(own.kernel, own.block_threads, strict=True)]
    found = unmeasured_rows([(bundle.gpu.name, FAMILY, kernel, "–") for kernel in kernels])
    known = np.zeros(len(own), dtype=np.bool_)
    found["measured_latency"], found["measured_power"] = own.latency_s, own.power_w
    for model in models:
        clock = np.isclose(np.round(own.sm_clock_mhz), np.round(model.sm_clock_mhz), rtol=0.0, equal_nan=True)
        same = (own.kernel == model.kernel) & (own.block_threads == model.block_threads) & clock
        known |= same
        time, energy = model.latency_s(own.blocks[same]), model.energy_j(own.blocks[same])
        columns = (time, model.latency_std_s(own.blocks[same]) / time, energy / time, model.energy_std_j(own.blocks[same]) / energy)
        found.loc[same, ["predicted_latency", "std_latency", "predicted_power", "std_power"]] = np.stack(columns, axis=-1)
    missing = ", ".join(dict.fromkeys(own.kernel[~known].tolist()))
    remarks = (f"no block-count model of {missing} at these clocks; their grids are not compared",) if missing else ()
    return error_rows(found[known]), remarks
