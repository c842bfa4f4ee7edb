"""Block-count models in a bundle: the section, what is said of it, and how it fares on grids that it has not seen."""

import math
from collections import Counter
from typing import Any, Final

import numpy as np

from estimator.blocks.model import FORMS, models_from_section, section_of
from estimator.bundle.content import Bundle
from estimator.vocabulary.gpu import GpuSpec
from fitter.blocks.model import fit_block_models
from fitter.errors import CalibrationError
from fitter.rows.block_table import SLOWED, BlockRows
from fitter.rows.columns import Selection
from fitter.validate.predictions import ErrorRow, errors_of
from fitter.validate.tables import Shown

FAMILY: Final = "blocks"
PERCENT: Final = 100.0


def block_section(selection: Selection, gpu: GpuSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The section `block_models`, and the kernels that have none with the reason; empty without grids.

    Raises CalibrationError where no model can be made and nothing else was measured.
    """
    if selection.blocks is None:
        return {}, ()
    fit = fit_block_models(selection.blocks, gpu.num_sms)
    others = (selection.kernels, selection.workloads, selection.instructions)
    if not fit.models and all(rows is None for rows in others):
        left_out = "".join(
            f"; {row.source} row {row.row} was rejected: {row.reason}{f', {row.detail}' if row.detail else ''}"
            for row in selection.rejected[:1]
        )
        more = f" and {len(selection.rejected) - 1} more" if len(selection.rejected) > 1 else ""
        raise CalibrationError(f"{fit.refused[0]}{left_out}{more}")
    return section_of(fit.models), (*(f"no block-count model: {reason}" for reason in fit.refused), *_slowed(selection))


def _slowed(selection: Selection) -> tuple[str, ...]:
    """A remark on grids that a limit of the board slowed down, by kernel and clock."""
    places = Counter(row.detail for row in selection.rejected if row.reason == SLOWED.upper() and row.detail)
    if not places:
        return ()
    named = ", ".join(f"{place} ({count})" for place, count in places.items())
    return (f"grids slowed down by a limit of the board are in no block-count model: {named}; measure them at a lower clock",)


def block_table(bundle: Bundle) -> Shown:
    """The models for people: coefficients, and errors of each form on grids left out."""
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
