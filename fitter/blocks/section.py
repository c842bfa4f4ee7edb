"""Block-count models in a bundle: a kernel's grids → its model, the section, its table, and its errors on unseen grids.

Three grids of a kernel suffice.  Each is weighted by its own relative error, and coefficients are not negative.  Weak priors determine the
coefficients that the grids do not: a launch takes some microseconds, the bend between latency and throughput is neither sharp nor flat, and
a working board draws little power beyond its dynamic energy.
The published coefficients (ordinary least squares) are stored as well.
"""

import math
from dataclasses import astuple, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy.optimize import least_squares, nnls

from estimator.blocks.model import (
    FORMS,
    LOGARITHMS,
    BlockModel,
    RelativeErrors,
    model_key,
    models_from_section,
    occupancy_times,
    section_of,
)
from estimator.bundle.content import Bundle
from estimator.display.pages import Shown
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array
from fitter.errors import CalibrationError
from fitter.latency.groups import OUTLIER_FACTOR
from fitter.rows.columns import BlockRows, Selection
from fitter.validate.predictions import PERCENT, unmeasured_rows

JUDGED: Final = ("time", "energy")
"""Quantities whose errors are stated for each form of a model."""

FEWEST_GRIDS: Final = 3
"""Different grids that a model needs (Boughzala et al., section V.B)."""

START_S: Final = 4e-6
"""Prior of the launch time on the GPU [s]: the time of kernels on an empty GPU (assumed)."""

OVERLAP: Final = 4.0
"""Prior of the norm that joins latency and throughput in a round: 1 adds both, a large norm takes the longer one."""

LN_WIDTHS: Final = np.array([1.0, 3.0, 3.0, 0.5])
"""Standard deviations of the logarithms of launch, latency, share and norm around their priors."""

LATENCY_ERROR: Final = 0.005
"""Relative error of a time, unless rows scatter more [1]: the scatter of repeated launches at a locked clock."""

TIED: Final = 0.5
"""A coefficient is tied to its prior if its posterior width exceeds this share of the prior's width [1]."""


def fit_block_models(rows: BlockRows, num_sms: int) -> tuple[list[BlockModel], list[str]]:
    """A model for each kernel, block size and clock among the rows of one GPU, and why kernels have none, or one without energy.

    Rows without a power at rest take the mean of the other rows at their clock, since the board is the same.
    """
    clocks, idle = np.round(rows.sm_clock_mhz), pd.Series(rows.idle_w)
    rows = replace(rows, idle_w=np.asarray(idle.fillna(idle.groupby(np.nan_to_num(clocks)).transform("mean")), dtype=np.float64))
    kinds = pd.DataFrame([rows.kernel, rows.block_threads, clocks]).T
    models, refused = [], []
    for _, own in kinds.groupby(list(kinds), sort=False, dropna=False):
        grids = rows.select(own.index.to_numpy())
        try:
            models.append(fit_block_model(grids, num_sms))
        except CalibrationError as error:
            refused.append(f"no block-count model: {error}")
            continue
        if not models[-1].has_power and np.isfinite(grids.power_w).any():
            why = f"{np.isnan(grids.power_w + grids.idle_w).sum()} of {len(grids)} rows lack power_w (or energy_j) or idle_w"
            refused.append(f"no energy in the block-count model {model_key(models[-1])}: {why}")
    return models, refused


def fit_block_model(rows: BlockRows, num_sms: int) -> BlockModel:
    """Fit the model of rows that differ only in their grid.

    Raises CalibrationError for fewer than three grids, several occupancies, or a failed launch.
    """
    # The last digits of sums depend on the order of rows, and the minimiser's end point depends on the sums.
    rows = rows.select(np.lexsort((rows.power_w, rows.latency_s, rows.blocks)).astype(np.int64))
    model = _fitted(rows, num_sms)
    usual_s = model.latency_s(rows.blocks)
    worst = int(np.abs(np.log(usual_s / rows.latency_s)).argmax())
    if not 1.0 / OUTLIER_FACTOR < usual_s[worst] / rows.latency_s[worst] < OUTLIER_FACTOR:
        grid = f"{rows.blocks[worst]:g} blocks took {rows.latency_s[worst]:.4g} s where other grids say {usual_s[worst]:.4g} s"
        raise CalibrationError(f"{model.kernel} with {model.block_threads} threads a block: {grid}; measure it again or leave it out")
    if len(np.unique(rows.blocks)) <= FEWEST_GRIDS:
        return model
    # Forms are judged on grids of so many rounds or more, a round being all blocks that the GPU holds at once: the published ones are for
    # many blocks (Boughzala et al., section VI.C).
    scatter, relative = _judged(rows, num_sms, 2.0 * model.resident_blocks)
    return replace(model, scatter=scatter, relative_errors=relative)


def left_out_errors(rows: BlockRows, num_sms: int) -> pd.DataFrame:
    """Relative errors of each form if each grid in turn is left out of the fit; columns form → "time", "energy".

    nan for the smallest and the largest grid: without them the fit would have to extrapolate.
    """
    errors = pd.DataFrame(index=range(len(rows)), columns=pd.MultiIndex.from_product([FORMS, JUDGED]), dtype=np.float64)
    for grid in np.unique(rows.blocks)[1:-1]:
        out = rows.blocks == grid
        model = _fitted(rows.select(~out), num_sms)
        held = rows.select(out)
        for form in FORMS:
            time, energy = model.latency_s(held.blocks, form), model.energy_j(held.blocks, form)
            ratios = (time / held.latency_s, energy / (held.power_w * held.latency_s))
            errors.loc[out, form] = np.stack(ratios, axis=-1) - 1.0
    return errors


def _judged(rows: BlockRows, num_sms: int, judged_from: float) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, RelativeErrors]]]:
    """Root mean square, and worst, best and average error on left-out grids, by form and quantity.

    Only grids of `judged_from` blocks or more count if any inner grid has that many.
    """
    inner = (rows.blocks > rows.blocks.min()) & (rows.blocks < rows.blocks.max())
    judged = inner & (rows.blocks >= judged_from)
    errors = left_out_errors(rows, num_sms)[judged if judged.any() else inner].abs()
    worst, best, average, rms = errors.max(), errors.min(), errors.mean(), np.sqrt((errors**2).mean())
    relative: dict[str, dict[str, RelativeErrors]] = {
        form: {name: RelativeErrors(wre=worst[form, name], bre=best[form, name], are=average[form, name]) for name in JUDGED}
        for form in FORMS
    }
    return {form: rms[form].to_dict() for form in FORMS}, relative


def _fitted(rows: BlockRows, num_sms: int) -> BlockModel:
    clock = f" at {rows.sm_clock_mhz[0]:.0f} MHz" if np.isfinite(rows.sm_clock_mhz[0]) else ""
    name = f"{rows.kernel[0]} with {rows.block_threads[0]:g} threads a block{clock}"
    grids = np.unique(rows.blocks)
    if len(grids) < FEWEST_GRIDS:
        raise CalibrationError(f"{name}: {len(grids)} grids measured; a block-count model needs {FEWEST_GRIDS}, two small and one larger")
    blocks_per_sm, *others = np.unique(rows.blocks_per_sm).astype(int).tolist()
    if others:
        raise CalibrationError(f"{name}: blocks_per_sm of {blocks_per_sm} and of {others[0]}; give each its own kernel name")
    logarithms, time_covariance, tied = _times(rows, num_sms, blocks_per_sm)
    slope_s, intercept_s = np.polyfit(rows.blocks, rows.latency_s, 1)
    static_w = static_std = slope_j = math.nan
    values, covariance = np.full(2, np.nan), np.full((2, 2), np.nan)
    if np.all(np.isfinite(rows.power_w) & np.isfinite(rows.idle_w)):
        values, covariance = _energies(rows)
        static_w, static_std = float(np.mean(rows.idle_w)), float(np.std(rows.idle_w, ddof=1) / math.sqrt(len(rows)))
        slope_j = float(np.polyfit(rows.blocks, (rows.power_w - rows.idle_w) * rows.latency_s, 1)[0])
    return BlockModel(
        kernel=str(rows.kernel[0]),
        block_threads=int(rows.block_threads[0]),
        num_sms=num_sms,
        blocks_per_sm=blocks_per_sm,
        sm_clock_mhz=float(np.mean(rows.sm_clock_mhz)),
        times_s=np.exp(logarithms[:-1]),
        overlap=float(np.exp(logarithms[-1])),
        time_covariance=time_covariance,
        energies=values,
        energy_covariance=covariance,
        static_w=static_w,
        static_std_w=static_std,
        slope_s=float(slope_s),
        intercept_s=float(intercept_s),
        slope_j=slope_j,
        blocks=(int(grids[0]), int(grids[-1])),
        rows=len(rows),
        scatter={},
        tied=tied,
        flop_per_block=float(rows.flop_per_block[0]),
    )


def _times(rows: BlockRows, num_sms: int, blocks_per_sm: int) -> tuple[Array, Array, tuple[str, ...]]:
    """Logarithms of launch, latency, share and norm, their covariance, and the names that the prior determines."""
    rounds = np.ceil(rows.blocks / (num_sms * blocks_per_sm))
    guess = float(np.median(np.maximum(rows.latency_s - START_S, 0.5 * rows.latency_s) / rounds))
    centre = np.log([START_S, guess, guess / blocks_per_sm, OVERLAP])

    def misfit(unit: Array) -> Array:
        times, _ = occupancy_times(rows.blocks, num_sms, blocks_per_sm, centre + LN_WIDTHS * unit)
        return np.concatenate([np.log(times / rows.latency_s) / LATENCY_ERROR, unit])

    low, high = (np.full(len(centre), bound) for bound in (-6.0, 6.0))
    low[-1], high[-1] = (math.log(bound / OVERLAP) / LN_WIDTHS[-1] for bound in (1.0, 16.0))
    found = least_squares(misfit, np.zeros(len(centre)), bounds=(low, high), x_scale=1.0, loss="soft_l1")
    logarithms = centre + LN_WIDTHS * found.x
    times, slopes = occupancy_times(rows.blocks, num_sms, blocks_per_sm, logarithms)
    scaled = slopes * LN_WIDTHS / (LATENCY_ERROR * times)[:, None]
    unit = _posterior(scaled, misfit(found.x)[: len(rows)])
    tied = tuple(name for name, std in zip(LOGARITHMS, np.sqrt(np.diag(unit)), strict=True) if std > TIED)
    return logarithms, unit * np.outer(LN_WIDTHS, LN_WIDTHS), tied


def _posterior(scaled: Array, misfit: Array) -> Array:
    """Covariance in units of the priors' widths.

    Rows that scatter more than their weights imply widen it by their chi-square per degree of freedom.
    """
    rows, terms = scaled.shape
    freedom = rows - terms
    inflation = max(1.0, float(misfit @ misfit) / freedom) if freedom > 0 else 1.0
    return np.asarray(np.linalg.inv(scaled.T @ scaled / inflation + np.eye(terms)), dtype=np.float64)


def _energies(rows: BlockRows) -> tuple[Array, Array]:
    """Energy of a block and power beyond rest, and their covariance."""
    energy = rows.power_w * rows.latency_s
    dynamic = energy - rows.idle_w * rows.latency_s
    # Relative error of a power without a standard error of its own.
    std_w = np.where(np.isfinite(rows.power_std_w), rows.power_std_w, 0.01 * rows.power_w)
    weights = 1.0 / np.maximum(np.hypot(std_w, LATENCY_ERROR * rows.power_w) * rows.latency_s, np.finfo(float).tiny)
    guess = float(np.median(np.maximum(dynamic, 0.0) / rows.blocks))
    centre = np.array([guess, 0.0])
    # Standard deviation of a working board's power beyond rest, as a share of the power at rest.
    width = np.array([max(guess, np.finfo(float).tiny), 0.5 * float(np.mean(rows.idle_w))])
    scaled = np.stack([rows.blocks, rows.latency_s], axis=-1) * width * weights[:, None]
    matrix = np.vstack([scaled, np.eye(len(width))])
    unit, _ = nnls(matrix, np.concatenate([dynamic * weights, centre / width]))
    covariance = _posterior(scaled, scaled @ unit - dynamic * weights)
    return unit * width, covariance * np.outer(width, width)


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
    return section_of(models), tuple(refused)


def block_tables(bundle: Bundle) -> tuple[Shown, Shown]:
    """Tables of the models: coefficients with errors of each form on left-out grids; and worst, best and average errors as published."""
    rows, relative = [], []
    for name, model in models_from_section(bundle.block_models, f"bundle {bundle.name}: block_models").items():
        errors = [PERCENT * model.scatter.get(form, {}).get(what, math.nan) for form in FORMS for what in JUDGED]
        for form, own in model.relative_errors.items():
            relative.append((name, form, *(PERCENT * one for what in JUDGED for one in astuple(own[what]))))
        rows.append((name, model.round_s(), float(model.energies[0]) if model.has_power else math.nan, *errors))
    heads = (f"{form}, {what} [%]" for form in FORMS for what in JUDGED)
    title = "WRE, BRE and ARE of these grids (Boughzala et al., section VI) [%]"
    names = (f"{what}, {name}" for what in JUDGED for name in ("WRE", "BRE", "ARE"))
    return (
        Shown(title="Block-count models, with errors on grids left out", head=("model", "round [s]", "block [J]", *heads), rows=rows),
        Shown(title=title, head=("model", "form", *names), rows=relative),
    )


def predict_blocks(bundle: Bundle, rows: BlockRows) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Predictions by form "occupancy" as from `predict_kernel_rows`, and a remark on kernels without a model."""
    models = models_from_section(bundle.block_models, f"bundle {bundle.name}: block_models").values()
    here = np.array(rows.row_gpus) == bundle.gpu.name
    kernels = [f"{kernel}/{threads:g}" for kernel, threads in zip(rows.kernel, rows.block_threads, strict=True)]
    found = unmeasured_rows([(bundle.gpu.name, FAMILY, kernel, "–") for kernel in kernels])
    known = np.zeros(len(rows), dtype=np.bool_)
    found["measured_latency"], found["measured_power"] = rows.latency_s, rows.power_w
    for model in models:
        clock = np.isclose(np.round(rows.sm_clock_mhz), np.round(model.sm_clock_mhz), rtol=0.0, equal_nan=True)
        same = here & (rows.kernel == model.kernel) & (rows.block_threads == model.block_threads) & clock
        known |= same
        time, energy = model.latency_s(rows.blocks[same]), model.energy_j(rows.blocks[same])
        columns = (time, model.latency_std_s(rows.blocks[same]) / time, energy / time, model.energy_std_j(rows.blocks[same]) / energy)
        found.loc[same, ["predicted_latency", "std_latency", "predicted_power", "std_power"]] = np.stack(columns, axis=-1)
    missing = ", ".join(dict.fromkeys(rows.kernel[~known].tolist()))
    remarks = (f"no block-count model of {missing} of this GPU at these clocks; their grids are not compared",) if missing else ()
    return found[known], remarks
