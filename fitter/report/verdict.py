"""What a fitted bundle is good for, in a few lines: the head of `fit`'s output and of its page."""

from collections.abc import Sequence
from math import nan
from typing import Final, Literal

import numpy as np
import pandas as pd

from estimator.blocks.model import models_from_section
from estimator.bundle.content import Bundle, HeldOut
from estimator.display.pages import Shown
from estimator.uncertainty.sources import unfitted_groups
from fitter.bundle.calibration import Calibration
from fitter.instructions.display import bundle_energies
from fitter.rows.rejected import count_reasons
from fitter.validate.predictions import PERCENT, QUANTITIES, compared, errors_of, kind_text, label_of, summary_row

FEW_CLOCKS_RATIO: Final = 1.05
"""Clocks within this ratio of each other count as one [1]."""


def verdict_lines(bundle: Bundle, calibration: Calibration) -> list[str]:
    """The board and its clocks, a line of held-out errors for each kind of rows, and lines on what the data lack."""
    low, high = bundle.clocks_mhz
    one = high <= FEW_CLOCKS_RATIO * low
    world = "the simulated " if bundle.simulated else ""
    clocks = f"{high:g} MHz alone" if one else f"{low:g} to {high:g} MHz"
    kernels = has_kernels(bundle)
    lines = [f"{bundle.name} {bundle.version} {'predicts' if kernels else 'describes'} {world}{bundle.gpu.name} at {clocks}"]
    lines += [_errors_line(kind, compared(found)) for kind, found in calibration.held_out.items() if len(found)]
    if kernels and not calibration.held_out:
        lines.append("no rows were held out: its errors are unknown")
    return [
        *lines,
        *_instruction_lines(bundle),
        *_block_lines(bundle),
        *(_missing_lines(bundle, calibration, one_clock=one) if kernels else ()),
    ]


def has_kernels(bundle: Bundle) -> bool:
    """Whether kernels or workloads were fitted, not instructions or grids alone."""
    return bundle.power is not None or any(group.rows for group in bundle.groups.values()) or bool(bundle.errors)


def _instruction_lines(bundle: Bundle) -> list[str]:
    """How well the energies of instructions are known; empty without them."""
    energies = bundle_energies(bundle)
    if energies is None:
        return []
    found = bundle.instruction_energies["instructions"].values()
    errors = [PERCENT * one["std_j"] / one["epi_j"] for one in found if one["epi_j"] > 0.0]
    known = f", standard error {np.median(errors):.1f} % in the median" if errors else ""
    doubtful = f"; {len(energies.doubts)} of low confidence" if energies.doubts else ""
    return [f"energies of {len(found)} instructions from {energies.rows} runs{known}{doubtful}"]


def _block_lines(bundle: Bundle) -> list[str]:
    """Errors of block-count models on grids left out; empty without models."""
    models = models_from_section(bundle.block_models, f"bundle {bundle.name}: block_models").values()
    if not models:
        return []
    errors = {what: np.median([model.scatter.get("occupancy", {}).get(what, np.nan) for model in models]) for what in ("time", "energy")}
    known = ", ".join(f"{PERCENT * error:.1f} % in {what}" for what, error in errors.items() if np.isfinite(error))
    return [f"{len(models)} block-count model(s): rms error on grids left out {known or 'unknown'}{' in the median' if known else ''}"]


def _errors_line(kind: str, found: pd.DataFrame) -> str:
    """Mean errors of held-out rows of a kind, and the share inside their intervals."""
    row = summary_row(found, kind)
    known = ", ".join(f"{error:.1f} % in {name}" for name, error in _mean_errors(row, found).items() if np.isfinite(error))
    inside = "" if row["coverage"] is None else f"; {PERCENT * row['coverage']:.0f} % lie inside the stated 90 % intervals"
    return f"held-out {kind} err by {known} on average ({len(found):,} rows){inside}"


def _mean_errors(row: HeldOut, found: pd.DataFrame) -> dict[str, float]:
    """Mean error of latency, power and their product, energy, in percent; nan where unknown."""
    measured, predicted = (found[f"{which}_latency"].to_numpy() * found[f"{which}_power"].to_numpy() for which in ("measured", "predicted"))
    errors = {"latency": row["latency"], "power": row["power"], "energy": errors_of(measured, predicted, np.full(len(found), np.nan))}
    return {name: np.nan if own is None else own["mape"] for name, own in errors.items()}


def _missing_lines(bundle: Bundle, calibration: Calibration, *, one_clock: bool) -> list[str]:
    """What the data do not tell, and so is a prior or an extrapolation."""
    priors = unfitted_groups(bundle, bundle.groups)
    absent = sorted({key.partition(".")[0] for key in priors} - {key.partition(".")[0] for key in bundle.groups if key not in priors})
    found = []
    if bundle.power is None:
        reasons = ", ".join(count_reasons(calibration.selection.rejected, power_only=True))
        none = "no row has any; where rows state `load` or `sm_clock_mhz`, the nearest bundle lends its power"
        found.append(f"power and energy ({f'every power was rejected: {reasons}' if reasons else none})")
    if absent:
        found.append(f"kernels of {', '.join(absent)} (priors)")
    if one_clock:
        found.append("other clocks (an extrapolation)")
    return [f"missing: {'; '.join(found)}"] if found else []


def family_table(calibration: Calibration) -> Shown:
    """Mean errors of held-out rows by family in percent."""
    rows: list[list[object]] = []
    for found in calibration.held_out.values():
        rows += [_family_row(str(family), own) for family, own in compared(found).groupby("family", sort=True)]
    return Shown(title="held-out errors in percent:", head=("family", "rows", "latency", "power", "energy", "inside 90 %"), rows=rows)


def error_table(title: str, rows: Sequence[HeldOut]) -> Shown:
    """Errors in percent, a line per kind of kernel."""
    figures: tuple[Literal["mape", "median", "p95", "bias"], ...] = ("mape", "median", "p95", "bias")
    head = ("rows of", "rows", *(name for quantity in QUANTITIES for name in (quantity, *figures[1:])), "coverage")
    cells: list[list[object]] = []
    for row in rows:
        errors = [nan if (own := row[quantity]) is None else round(own[name], 2) for quantity in QUANTITIES for name in figures]
        covered = nan if row["coverage"] is None else round(PERCENT * row["coverage"], 0)
        cells.append([kind_text(label_of(row)), row["n"], *errors, covered])
    return Shown(title=title, head=head, rows=cells)


def _family_row(family: str, found: pd.DataFrame) -> list[object]:
    row = summary_row(found, family)
    errors = [round(error, 1) for error in _mean_errors(row, found).values()]
    return [family, row["n"], *errors, np.nan if row["coverage"] is None else round(PERCENT * row["coverage"], 0)]
