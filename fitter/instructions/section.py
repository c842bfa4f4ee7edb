"""The bundle of a board with measured instructions: rows of generated kernels → energies, and the other parts of such a bundle.

Energies are those per instruction, per transaction, per stalled slot, and constant power.  Power beyond the board at rest is regressed on
rates of events, with coefficients that are not negative.  Unroll factors separate the loop from its body; occupancies and dependent chains
separate issue from stalls; sweeps over SMs determine constant power; sweeps over lanes separate the lanes from the issue.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from estimator.bundle.content import Bundle
from estimator.counts.energies import (
    CONSTANT,
    HEAT,
    INSTRUCTION,
    ISSUE,
    LINKS,
    LOOP,
    SHAPE_STD,
    STALL,
    TRANSACTION,
    TRANSACTION_BYTES,
    Activity,
    InstructionEnergies,
    LinkEnergy,
    section_of,
    stall_slots,
    term_weights,
)
from estimator.counts.opcodes import RARE, loop_classes
from estimator.counts.prices import RARE_SPREAD, is_matrix
from estimator.engine.board import board_tables
from estimator.model.power import BoardTables
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array, BoolArray
from estimator.vocabulary.reader import plain
from estimator.vocabulary.values import frozen
from fitter.errors import CalibrationError
from fitter.instructions.display import bundle_energies
from fitter.instructions.ptx import OWN_SHARE, doubts_of, ptx_rows, shares_of_bodies
from fitter.rows.columns import InstructionRow, InstructionRows, Selection, at_level
from fitter.validate.predictions import unmeasured_rows

PRIOR_STD: Final = {
    INSTRUCTION: 3e-10,
    ISSUE: 3e-9,
    LOOP: 3e-10,
    STALL: 3e-9,
    TRANSACTION: 1e-7,
    CONSTANT: 1e3,
    HEAT: 30.0,
}
"""Prior standard deviation of each term around 0 [J, W, W/K]: far above the values of any GPU."""

MOST_SCATTER: Final = 0.3
"""Largest relative scatter of powers that the fit considers."""
LEAST_POWER_STD_W: Final = 0.1
"""Least standard error of a power, for any number of readings [W]."""

MODEL_STD: Final = 0.005
"""Effect of voltage and temperature on leakage that no term contains, as a share of every energy [relative]: the voltage of a board sags
by up to 1 % under load, and leakage follows its fourth power while the terms use the second."""

OPERANDS_STD: Final = 0.03
"""Relative difference between instructions of one class caused by their operands: registers, values and operand reuse.  Assumed: no rows of
real boards determine it yet.  A class is measured with the operands of its own kernels and used for all operands."""

FEWEST_ROWS: Final = 12
"""Fewer runs cannot separate a body from its loop, from stalls and from constant power."""


@frozen
class _System:
    """The linear system: rates of each term (n, t) [1/s], power beyond rest (n,) and its standard deviation (n,) [W]."""

    terms: tuple[str, ...]
    rates: Array
    excess_w: Array
    std_w: Array
    shape: Array


def fit_instructions(rows: InstructionRows, board: BoardTables, gain_std: float = 0.0) -> InstructionEnergies:
    """Fit the energies of one board's instructions.

    gain_std: relative standard deviation of the sensor's gain, which all terms share; the covariance contains it.  Rows of the published
    single-thread mode, and of operands that are not random, are left out.  Raises CalibrationError if rows are too few.
    """
    gpu, own = board.gpu, rows.select(fitted_rows(rows, board.gpu))
    if len(own) < FEWEST_ROWS:
        raise CalibrationError(
            f"{len(own)} runs of generated kernels on random data; instruction energies need {FEWEST_ROWS} of several "
            f"unroll factors and occupancies: `collect --campaign instructions`"
        )
    clocks, temperature = own.column("sm_clock_mhz"), own.column("temperature_c")
    clock = float(np.quantile(clocks, 0.5, method="lower"))  # of several locked clocks one of them, as no voltage belongs to a mean
    volt, voltage = _relative_voltage(own, gpu, np.round(clocks) == round(clock))
    reference_c = float(np.nanmedian(temperature)) if np.isfinite(temperature).any() else np.nan
    warmer = np.nan_to_num(temperature - reference_c)
    system = _system(own, board, volt**2, clocks / clock, warmer)
    if not (system.excess_w > 0).any():
        raise CalibrationError("no run of generated kernels draws more than the board at rest; check power_w and the GPU's idle_w")
    values, scatter = _scattered(system)
    covariance, identified = _covariance(system, values, scatter)
    lanes = np.array([term.startswith(INSTRUCTION) for term in system.terms])
    covariance += (gain_std**2 + MODEL_STD**2) * np.outer(values, values) + np.diag(lanes * (OPERANDS_STD * values) ** 2)
    energies = InstructionEnergies(
        terms=system.terms,
        values=values,
        covariance=covariance,
        identified=tuple(identified.tolist()),
        reference_voltage_v=voltage,
        reference_clock_mhz=clock,
        temperature_c=reference_c,
        scatter=scatter,
        rows=len(own),
        assembler=" | ".join(dict.fromkeys(row.assembler for row in own.rows)),
        gain_std=gain_std,
    )
    return ptx_rows(replace(energies, doubts=FrozenMapping(doubts_of(energies, own))), rows)


def fitted_rows(rows: InstructionRows, gpu: GpuSpec) -> BoolArray:
    """Mask of the rows in the fit, shape (n,): random operands, no link traffic, several threads, and a known voltage if throttled."""
    blind = not np.isfinite(rows.column("voltage_v")).all() and gpu.voltage_v is None
    return np.array(
        [row.random and not row.link and row.mode != "single" and not (row.throttled and blind) for row in rows.rows], dtype=np.bool_
    )


def row_activity(row: InstructionRow, gpu: GpuSpec, kelvin: float) -> Activity:
    """Activity of one launch of a row."""
    classes, issued_once = loop_classes(row.body)
    issued = issued_once * row.warps * row.turns
    sms = min(row.blocks, float(gpu.num_sms))
    return Activity(
        instructions={name: count * row.threads * row.turns for name, count in classes.items()},
        issued=issued,
        transactions=row.transactions,
        stalls=stall_slots(row.latency_s, row.sm_clock_mhz, sms, issued),
        time_s=row.latency_s,
        loops=row.threads * row.turns,
        kelvin=kelvin,
    )


def excess_power_w(rows: InstructionRows, board: BoardTables) -> tuple[Array, Array]:
    """Power beyond that of the board at rest at the same clock, and its standard deviation [W], shape (n,).

    Rest is that of the tables to which `estimate counts` adds the energies, so that the sum is the measured power.  A reading before
    a run is no rest at its clock: an unlocked board may lower its clock between runs.
    """
    power_std = np.maximum(np.nan_to_num(rows.column("power_std_w"), nan=1.0), LEAST_POWER_STD_W)
    return rows.column("power_w") - board.rest_w(rows.column("sm_clock_mhz")), power_std


def _relative_voltage(rows: InstructionRows, gpu: GpuSpec, there: BoolArray) -> tuple[Array, float]:
    """Core voltage of each row relative to the median `there`, shape (n,), and the median (nan if neither board nor table has it)."""
    voltage = rows.column("voltage_v")
    if not np.isfinite(voltage).all():
        if gpu.voltage_v is None:
            return np.ones(len(rows)), np.nan
        voltage = gpu.voltage_v.at(rows.column("sm_clock_mhz"))
    middle = float(np.median(voltage[there]))
    return voltage / middle, middle


def _system(rows: InstructionRows, board: BoardTables, volt: Array, clock: Array, warmer: Array) -> _System:
    # Classes with at least OWN_SHARE of some measured body, and all classes of matrix instructions.
    names = [name for name, own in sorted(shares_of_bodies(rows).items()) if max(own) >= OWN_SHARE or is_matrix(name)]
    candidates = (
        CONSTANT,
        HEAT,
        STALL,
        ISSUE,
        LOOP,
        *(INSTRUCTION + name for name in (*names, RARE)),
        *(TRANSACTION + level for level in TRANSACTION_BYTES),
    )
    matrix = np.zeros((len(rows), len(candidates)))
    for i, row in enumerate(rows.rows):
        activity = row_activity(row, board.gpu, float(warmer[i]))
        matrix[i] = term_weights(activity, candidates, float(volt[i]), float(clock[i])) / row.latency_s
    seen: BoolArray = np.asarray((np.abs(matrix) > 0).any(axis=0))
    terms = tuple(term for term, any_row in zip(candidates, seen, strict=True) if any_row)
    excess, std = excess_power_w(rows, board)
    return _System(terms=terms, rates=matrix[:, seen], excess_w=excess, std_w=std, shape=volt * clock)


def _prior_std(terms: tuple[str, ...]) -> Array:
    return np.array([next(std for name, std in PRIOR_STD.items() if term.startswith(name)) for term in terms])


def _weights(system: _System, scatter: float, values: Array) -> Array:
    """One over the standard deviation of each row, shape (n,) [1/W]; `values` are the current terms."""
    relative = scatter * np.maximum(system.excess_w, 1.0)
    shaped = SHAPE_STD * np.abs(system.shape - 1.0) * values[system.terms.index(CONSTANT)]
    rare = np.array([term == INSTRUCTION + RARE for term in system.terms])
    lumped = RARE_SPREAD * system.rates[:, rare] @ values[rare]
    return np.asarray(1.0 / np.sqrt(system.std_w**2 + relative**2 + shaped**2 + lumped**2), dtype=np.float64)


def _solve(system: _System, scatter: float, before: Array) -> tuple[Array, float]:
    """Terms that are not negative, and chi square over the degrees of freedom; `before` are the terms of the previous step."""
    weight = _weights(system, scatter, before)
    prior = _prior_std(system.terms)
    columns = np.concatenate([system.rates * weight[:, None], np.diag(1.0 / prior)]) * prior
    target = np.concatenate([system.excess_w * weight, np.zeros(len(prior))])
    values = nnls(columns, target)[0] * prior
    residual = (system.excess_w - system.rates @ values) * weight
    freedom = max(1, len(residual) - int((values > 0).sum()))
    return values, float(residual @ residual) / freedom


def _scattered(system: _System) -> tuple[Array, float]:
    """Terms, and the relative scatter beyond the rows' own errors that gives the expected chi square."""
    low, high = 0.0, MOST_SCATTER
    values, chi = _solve(system, low, np.zeros(len(system.terms)))
    for _ in range(24):
        middle = 0.5 * (low + high)
        values, chi = _solve(system, middle, values)
        low, high = (middle, high) if chi > 1.0 else (low, middle)
    return values, high


def _covariance(system: _System, values: Array, scatter: float) -> tuple[Array, BoolArray]:
    """Covariance of the terms, with terms at zero separate from the others, and a mask of the identified terms."""
    weight = _weights(system, scatter, values)
    prior = _prior_std(system.terms)
    scaled = system.rates * weight[:, None] * prior
    free = values > 0
    whole = np.linalg.inv(scaled.T @ scaled + np.eye(len(prior)))
    covariance = np.diag(np.diag(whole))
    covariance[np.ix_(free, free)] = np.linalg.inv(scaled[:, free].T @ scaled[:, free] + np.eye(int(free.sum())))
    # A term is identified where rows leave less than this share of the prior's standard deviation.
    decided: BoolArray = np.sqrt(np.diag(covariance)) < 0.1
    return covariance * np.outer(prior, prior), decided


def instruction_section(selection: Selection, board: BoardTables) -> tuple[dict[str, object], tuple[str, ...]]:
    """Section `instruction_energies`, and a remark if rows are too few for a regression; empty without rows of generated kernels.

    Links and copies need no regression, so they are always present.  Raises CalibrationError if rows are too few and nothing else was
    measured.
    """
    if selection.instructions is None:
        return {}, ()
    rows, gain = selection.instructions, selection.gain_std
    links = link_energies(rows, gain)
    table: dict[str, object] = {LINKS: plain(links)} if links else {}
    if all(row.link for row in rows.rows):
        return table, ()
    try:
        return section_of(fit_instructions(rows, board, gain)) | table, ()
    except CalibrationError as error:
        if not links and len(selection.parts) == 1:
            raise
        return table, (f"no instruction energies: {error}",)


ERROR_FAMILY: Final = "instruction"


def predict_instructions(bundle: Bundle, rows: InstructionRows) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Predictions of power by launch mode and level ("full.O3") as from `predict_kernel_rows`, and a remark on others; time is measured.

    Runs whose operands are not random are not compared: energies hold for random operands.  Raises BundleError for a damaged section.
    """
    energies = bundle_energies(bundle)
    if energies is None:
        return unmeasured_rows(()), ("the bundle has no instruction energies; runs of generated kernels are not compared",)
    own = rows.select(np.array([row.random and not row.link and row.gpu == bundle.gpu.name for row in rows.rows], dtype=np.bool_))
    if not len(own):
        return unmeasured_rows(()), ("no run of generated kernels on random operands is of the bundle's GPU",)
    found, unknown = unmeasured_rows([(row.gpu, ERROR_FAMILY, at_level(row.mode, row.level), "–") for row in own.rows]), []
    found["measured_power"], (excess, _) = own.column("power_w"), excess_power_w(own, board_tables(bundle, bundle.gpu))
    for i, row in enumerate(own.rows):
        kelvin = np.nan_to_num(row.temperature_c - energies.temperature_c)
        activity = replace(row_activity(row, bundle.gpu, float(kelvin)), voltage_v=row.voltage_v, sm_clock_mhz=row.sm_clock_mhz)
        try:
            joule, std_j = energies.energy_j(activity)
        except BundleError as error:
            unknown.append(str(error))
            continue
        power = row.power_w - excess[i] + joule / row.latency_s
        std = np.hypot(std_j / row.latency_s, energies.scatter * excess[i])
        found.loc[i, ["predicted_power", "std_power"]] = power, std / power
    return found, tuple(dict.fromkeys(unknown))


def link_energies(rows: InstructionRows, gain_std: float = 0.0) -> dict[str, LinkEnergy]:
    """Mean link energies by kernel at a level, or by copy; a single run keeps the error of its power.

    A run without its power at rest takes that of other runs at its clock; if no run has it, there is no energy.

    gain_std: relative standard deviation of the sensor's gain.
    """
    names = ["build", "link", "random", "link_bytes", "latency_s", "power_w", "power_std_w", "idle_w", "asked_mhz"]
    frame = pd.DataFrame([[getattr(row, name) for name in names] for row in rows.rows], columns=names)
    rests, alone = frame.groupby("asked_mhz", dropna=False)["idle_w"], frame["idle_w"].isna()
    frame["idle_std_w"] = rests.transform("std", ddof=0).where(alone, 0.0)
    frame["idle_w"] = frame["idle_w"].fillna(rests.transform("mean"))
    frame = frame[frame["random"] & (frame["link"] != "")]
    frame["byte_s"] = frame["latency_s"] / frame["link_bytes"]
    frame["joule"] = (frame["power_w"] - frame["idle_w"]) * frame["byte_s"]
    power_std = frame["power_std_w"].fillna(0.0).clip(lower=LEAST_POWER_STD_W)
    frame["std"] = np.hypot(power_std, frame["idle_std_w"]) * frame["byte_s"]
    found = {}
    for name, own in frame.groupby("build"):
        known = own.dropna(subset="joule")
        mean, scatter = float(known["joule"].mean()), float(known["joule"].std()) if len(known) > 1 else 0.0
        std = max(scatter, float(known["std"].mean())) / math.sqrt(max(len(known), 1))
        found[str(name)] = LinkEnergy(
            link=own["link"].iloc[0],
            bytes_per_s=float((1.0 / own["byte_s"]).mean()),
            j_per_byte=mean,
            std_j=math.hypot(std, gain_std * mean) if len(known) else math.nan,
            runs=len(own),
            why_unknown="" if len(known) else "no power at rest (idle_before_w) of these runs or of others at their clocks",
        )
    return found
