"""Grids of a kernel → its block-count model: three grids suffice.

Each grid is weighted by its own relative error, coefficients are not negative, and weak priors decide what the grids leave open:
the launch is some microseconds, a round is half latency and half throughput, and a working board draws little beyond its dynamic energy.
The published coefficients (ordinary least squares) are kept beside.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.optimize import nnls

from estimator.block_count import ENERGIES, FORMS, TIMES, BlockModel, occupancy_columns
from estimator.quantities import Array
from fitter.block_data import BlockRows
from fitter.errors import CalibrationError

FEWEST_GRIDS: Final = 3
"""Different grids that a model needs (Boughzala et al., section V.B)."""

FEWEST_TO_LEAVE_OUT: Final = FEWEST_GRIDS + 1

START_S: Final = 4e-6
START_STD_S: Final = 4e-6
"""A launch as the GPU sees it, before any row is seen [s]: what kernels on an empty GPU take (docs/model.md, "the floor")."""

LATENCY_ERROR: Final = 0.005
"""Relative error of a time, unless rows scatter more [1]: what repeated launches at a locked clock do."""

POWER_ERROR: Final = 0.01
"""Relative error of a power without a standard error of its own [1]."""

SPLIT_STD: Final = 1.0
"""Standard deviation of ln of either part of a round around half of it [1]: nearly free."""

AWAKE_SHARE: Final = 0.5
"""Standard deviation of a working board's power beyond rest, as a share of the power at rest [1]."""

TIED: Final = 0.5
"""A coefficient of which the grids leave more than this share of the prior's width is tied to the prior [1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFit:
    """Models, and the kernels of which none could be made, with the reason."""

    models: tuple[BlockModel, ...]
    refused: tuple[str, ...]


def fit_block_models(rows: BlockRows, num_sms: int) -> BlockFit:
    """A model for each kernel, block size, occupancy and clock among the rows of one GPU."""
    keys = list(zip(rows.kernel, rows.block_threads, rows.blocks_per_sm, np.round(rows.sm_clock_mhz), strict=True))
    named = [(str(kernel), *(None if math.isnan(number) else float(number) for number in rest)) for kernel, *rest in keys]
    models, refused = [], []
    for key in dict.fromkeys(named):
        own = rows.select(np.array([one == key for one in named], dtype=np.bool_))
        try:
            models.append(fit_block_model(own, num_sms))
        except CalibrationError as error:
            refused.append(str(error))
    return BlockFit(models=tuple(models), refused=tuple(refused))


def fit_block_model(rows: BlockRows, num_sms: int) -> BlockModel:
    """The model of rows that differ in their grid alone.  Raises CalibrationError for fewer than three grids."""
    model = _fitted(rows, num_sms)
    scatter = _left_out(rows, num_sms) if len(np.unique(rows.blocks)) >= FEWEST_TO_LEAVE_OUT else {}
    return _with_scatter(model, scatter)


def left_out_errors(rows: BlockRows, num_sms: int) -> dict[str, dict[str, Array]]:
    """Relative errors of each form when each grid in turn is left out of the fit: form → "time", "energy" → (n,)."""
    errors: dict[str, dict[str, Array]] = {form: {name: np.full(len(rows), np.nan) for name in ("time", "energy")} for form in FORMS}
    for grid in np.unique(rows.blocks):
        out = rows.blocks == grid
        model = _fitted(rows.select(~out), num_sms)
        held = rows.select(out)
        energy = held.power_w * held.latency_s
        for form in FORMS:
            errors[form]["time"][out] = model.latency_s(held.blocks, form) / held.latency_s - 1.0
            errors[form]["energy"][out] = model.energy_j(held.blocks, form) / energy - 1.0
    return errors


def _left_out(rows: BlockRows, num_sms: int) -> dict[str, dict[str, float]]:
    return {
        form: {name: float(np.sqrt(np.mean(np.square(values)))) for name, values in own.items()}
        for form, own in left_out_errors(rows, num_sms).items()
    }


def _with_scatter(model: BlockModel, scatter: dict[str, dict[str, float]]) -> BlockModel:
    return replace(model, scatter=scatter)


def _fitted(rows: BlockRows, num_sms: int) -> BlockModel:
    first = rows.select(np.arange(len(rows)) == 0)
    name = f"{first.kernel[0]} with {first.block_threads[0]:g} threads a block"
    grids = np.unique(rows.blocks)
    if len(grids) < FEWEST_GRIDS:
        raise CalibrationError(f"{name}: {len(grids)} grids measured; a block-count model needs {FEWEST_GRIDS}, two small and one larger")
    blocks_per_sm = int(first.blocks_per_sm[0])
    times, time_covariance, tied = _times(rows, num_sms, blocks_per_sm)
    slope_s, intercept_s = np.polyfit(rows.blocks, rows.latency_s, 1)
    energy = _energies(rows)
    static_w = float(np.mean(rows.idle_w))
    static_std = float(np.std(rows.idle_w, ddof=1) / math.sqrt(len(rows))) if math.isfinite(static_w) else math.nan
    excess_j = (rows.power_w - rows.idle_w) * rows.latency_s
    slope_j = float(np.polyfit(rows.blocks, excess_j, 1)[0]) if energy is not None else math.nan
    values, covariance = energy or (np.full(2, np.nan), np.full((2, 2), np.nan))
    return BlockModel(
        kernel=str(first.kernel[0]),
        block_threads=int(first.block_threads[0]),
        num_sms=num_sms,
        blocks_per_sm=blocks_per_sm,
        sm_clock_mhz=float(np.mean(rows.sm_clock_mhz)),
        times_s=times,
        time_covariance=time_covariance,
        energies=values,
        energy_covariance=covariance,
        static_w=static_w if energy else math.nan,
        static_std_w=static_std if energy else math.nan,
        slope_s=float(slope_s),
        intercept_s=float(intercept_s),
        slope_j=slope_j,
        blocks=(int(grids[0]), int(grids[-1])),
        rows=len(rows),
        scatter={},
        tied=tied,
        flop_per_block=float(first.flop_per_block[0]),
    )


def _times(rows: BlockRows, num_sms: int, blocks_per_sm: int) -> tuple[Array, Array, tuple[str, ...]]:
    """Launch, latency and share of a round, their covariance, and those that the grids do not tell apart."""
    columns = occupancy_columns(rows.blocks, num_sms, blocks_per_sm)
    rounds = columns[:, 1]
    guess = float(np.median(np.maximum(rows.latency_s - START_S, 0.5 * rows.latency_s) / rounds))
    centre = np.array([START_S, guess / 2, guess / 2 / blocks_per_sm])
    width = np.array([START_STD_S, SPLIT_STD * centre[1], SPLIT_STD * centre[2]])
    weights = np.full(len(rows), 1.0 / LATENCY_ERROR) / rows.latency_s
    return _bayes(columns, rows.latency_s, weights, centre, width, TIMES)


def _energies(rows: BlockRows) -> tuple[Array, Array] | None:
    """Energy of a block and power beyond rest, and their covariance; None where a power is missing."""
    if not np.all(np.isfinite(rows.power_w) & np.isfinite(rows.idle_w)):
        return None
    energy = rows.power_w * rows.latency_s
    dynamic = energy - rows.idle_w * rows.latency_s
    std_w = np.where(np.isfinite(rows.power_std_w), rows.power_std_w, POWER_ERROR * rows.power_w)
    weights = 1.0 / np.maximum(np.hypot(std_w, LATENCY_ERROR * rows.power_w) * rows.latency_s, np.finfo(float).tiny)
    guess = float(np.median(np.maximum(dynamic, 0.0) / rows.blocks))
    centre = np.array([guess, 0.0])
    width = np.array([max(guess, np.finfo(float).tiny), AWAKE_SHARE * float(np.mean(rows.idle_w))])
    columns = np.stack([rows.blocks, rows.latency_s], axis=-1)
    values, covariance, _ = _bayes(columns, dynamic, weights, centre, width, ENERGIES)
    return values, covariance


def _bayes(
    columns: Array, target: Array, weights: Array, centre: Array, width: Array, names: Sequence[str]
) -> tuple[Array, Array, tuple[str, ...]]:
    """Non-negative coefficients at the mode of rows and priors, covariance there, and the names of those that the prior decides.

    Rows that scatter more than their weights say widen the covariance: their chi-square per degree of freedom multiplies it.
    """
    scaled = columns * width * weights[:, None]
    matrix = np.vstack([scaled, np.eye(len(width))])
    values, _ = nnls(matrix, np.concatenate([target * weights, centre / width]))
    misfit = scaled @ values - target * weights
    freedom = len(target) - len(width)
    inflation = max(1.0, float(misfit @ misfit) / freedom) if freedom > 0 else 1.0
    unit = np.linalg.inv(scaled.T @ scaled / inflation + np.eye(len(width)))
    tied = tuple(name for name, std in zip(names, np.sqrt(np.diag(unit)), strict=True) if std > TIED)
    return values * width, unit * np.outer(width, width), tied
