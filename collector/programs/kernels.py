"""Energy by kernel of an unmodified program: when each kernel ran, by CUPTI, and the power that explains the readings.

    reading_i = ∫ h(t_i − t) · (p_0 · idle(t) + Σ_k p_k · share_k(t)) dt + noise,   p ≥ 0

share_k(t) is kernel k's share of the time around t (kernels that run side by side divide it), idle(t) the rest.  The prior of p_0 is the
power at rest, that of each p_k the mean power while kernels run: kernels that always run together are not told apart, and their errors say
so.
"""

import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from scipy.optimize import nnls

from collector.devices.protocols import Instruments
from collector.devices.tracer import demangled
from collector.errors import ProgramError
from collector.programs.program import KernelRecord, Program, ProgramRun, measure_program
from collector.sampling import Sampler, host_spans
from collector.sensing.board_power import GRID_S, LAUNCH_LAG_S, LAUNCH_RISE_S, LEAD_S, signal_of, smoothed
from collector.sensing.calibration import SensorCalibration
from collector.sensing.deconvolve import Spans, covered_s
from collector.sensing.known_sensor import inversion, possible_responses
from collector.sensing.repeated import mixed, sensor_notes
from collector.sensing.response import SensorResponse, seen
from collector.sensing.updates import BoardUpdates, board_updates
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

MOST_KERNELS: Final = 24
"""Kernels with a row of their own, those with the longest time; the others share one."""
PRIOR_SHARE: Final = 0.4
"""Prior standard deviation of a kernel's power, as a share of the mean power of all: kernels draw 0.5 to 1.5 times the mean."""
OUTSIDE_SHARE, LEAST_BUSY = 0.9, 0.05
"""Least share of a reading outside the program that counts as rest, and least share of the program's time that its kernels take
(assumed) [1]."""
ROUNDS: Final = 3
"""Rounds of fitting and estimating the noise."""
INJECTED: Final = Path(__file__).parent / "injected"
NO_KERNEL: Final = (
    "no kernel was traced: only Python programs are (not with -I or -S), and this one launched none, or did not end by itself"
)
INSTALL: Final = "install CUPTI beside the program: pip install cupti-python (of the driver's CUDA major, 12 or 13)"
IDLE, OTHERS = "(no kernel)", "(other kernels)"


@frozen
class KernelEnergy:
    """All launches of a kernel: their time [s], and the board's energy in it with its standard error [J]."""

    name: str
    launches: int
    time_s: float
    energy_j: float
    energy_std_j: float


def measure_kernels(
    instruments: Instruments, sampler: Sampler, program: Program, calibration: SensorCalibration, *, asked_mhz: float | None
) -> tuple[ProgramRun, tuple[KernelEnergy, ...]]:
    """Run a program once and return its run, and the energy of each of its kernels as `kernel_energies`.

    Raises ProgramError for a program that cannot be started, whose Python lacks CUPTI, or in which no kernel was traced or no reading fell;
    otherwise the errors of `measure_program`.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "WATTPRINT_KERNELS": folder,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(INJECTED), os.environ.get("PYTHONPATH", "")))),
        }
        traced = replace(program, environment={**program.environment, **environment})
        run = measure_program(instruments, sampler, traced, calibration, asked_mhz=asked_mhz)
        records = traced.kernels or [one for path in sorted(Path(folder).iterdir()) for one in _records(path.read_text("utf-8"))]
    if not records:
        raise ProgramError(NO_KERNEL, run.exit_status or 1)
    if not math.isfinite(run.energy_j):
        raise ProgramError("no reading of the power fell within the program; let it take longer", run.exit_status or 1)
    kernels, notes = kernel_energies(run, records, calibration)
    return replace(run, notes=(*notes, *run.notes)), kernels


def kernel_energies(
    run: ProgramRun, records: Sequence[KernelRecord], calibration: SensorCalibration
) -> tuple[tuple[KernelEnergy, ...], tuple[str, ...]]:
    """Energy of each kernel of a run, by falling energy, that of the time without a kernel last, and notes on the sensor.

    Raises SensorError for too few readings.
    """
    updates = board_updates(*run.polls, calibration)
    kernels = _by_name(records)
    shares, edge_s = _shares([span for _, span, _ in kernels], updates, run)
    share_s = GRID_S * shares[:-1].sum(axis=1)
    times_s = [float((end_s - start_s).sum()) for _, (start_s, end_s), _ in kernels]
    possible, back = possible_responses(calibration, updates.period_s), inversion(calibration)
    weight = possible.weighed(np.zeros(len(possible.responses)))
    fits = [_levels(shares, edge_s, updates, response, calibration.reading_noise_w or 0.0) for response in possible.responses]
    found = []
    for index, time_s in enumerate((*times_s, float(share_s[-1]))):
        level, std = mixed(weight, [(float(level[index]), float(std[index])) for level, std in fits])
        energy_j, std_j = back.energy(level * share_s[index], std * share_s[index], float(share_s[index]))
        name, _, launches = kernels[index] if index < len(kernels) else (IDLE, None, 0)
        found.append(KernelEnergy(name=name, launches=launches, time_s=time_s, energy_j=float(energy_j), energy_std_j=float(std_j)))
    return (*sorted(found[:-1], key=lambda one: -one.energy_j), found[-1]), tuple(sensor_notes(calibration, updates).values())


def _by_name(records: Sequence[KernelRecord]) -> list[tuple[str, Spans, int]]:
    """Name, spans and number of launches of the kernels with the longest time, the others together."""
    grouped: dict[str, list[KernelRecord]] = defaultdict(list)
    for one in records:
        grouped[one.name].append(one)
    order = sorted(grouped, key=lambda name: -sum(one.end_ns - one.start_ns for one in grouped[name]))
    if others := order[MOST_KERNELS:]:
        grouped[OTHERS] = [one for name in others for one in grouped[name]]
        order[MOST_KERNELS:] = [OTHERS]
    return [
        (demangled(name), host_spans([(one.start_ns, one.end_ns) for one in grouped[name]]), sum(one.launches for one in grouped[name]))
        for name in order
    ]


def _shares(spans: Sequence[Spans], updates: BoardUpdates, run: ProgramRun) -> tuple[Array, Array]:
    """Shares of each cell's time, shape (kernels + 2, cells), and the cells' edges [s]: kernels, the program's idle time, rest."""
    begin_s = float(updates.time_s[0]) - LEAD_S
    edge_s: Array = begin_s + GRID_S * np.arange(math.ceil((float(updates.time_s[-1]) + GRID_S - begin_s) / GRID_S) + 1, dtype=np.float64)
    shares = np.empty((len(spans) + 2, len(edge_s) - 1))
    for index, (start_s, end_s) in enumerate(spans):
        shares[index] = covered_s(edge_s, (start_s + LAUNCH_LAG_S, end_s + LAUNCH_LAG_S)) / GRID_S
    shares[:-2] /= np.maximum(shares[:-2].sum(axis=0), 1.0)
    within = covered_s(edge_s, (np.array([run.start_s]), np.array([run.start_s + run.latency_s]))) / GRID_S
    shares[-2] = np.maximum(within - shares[:-2].sum(axis=0), 0.0)
    shares[-1] = 1.0 - shares[:-1].sum(axis=0)
    return shares, edge_s


def _levels(shares: Array, edge_s: Array, updates: BoardUpdates, response: SensorResponse, noise_w: float) -> tuple[Array, Array]:
    """Power of each kernel and of the program's idle time, and their standard errors, in the sensor's domain [W], shape (k + 1,)."""
    signals = [signal_of(float(edge_s[0]), smoothed(share, LAUNCH_RISE_S)) for share in shares]
    design = np.column_stack([seen(signal, response.kernel, response.width_s, updates.time_s - response.delay_s) for signal in signals])
    busy = design[:, :-1].sum(axis=1) > 0.5
    mean_w = float(updates.value[busy].mean() if busy.any() else updates.value.mean())
    outside = design[:, -1] > OUTSIDE_SHARE
    rest_w = float(updates.value[outside].mean() if outside.any() else updates.value.min())
    gaps = float(design[busy, -2].sum() / design[busy, :-1].sum()) if busy.any() else 0.0
    kernel_w = max((mean_w - gaps * rest_w) / max(1.0 - gaps, LEAST_BUSY), rest_w)
    centre, prior = np.full(design.shape[1], kernel_w), np.full(design.shape[1], 1.0 / (PRIOR_SHARE * kernel_w))
    centre[-2:], prior[-2:] = rest_w, 1.0 / rest_w
    variance = max(noise_w, 1.0) ** 2
    for _ in range(ROUNDS):
        above = np.vstack([design / math.sqrt(variance), np.diag(prior)])
        level = nnls(above, np.concatenate([updates.value / math.sqrt(variance), centre * prior]))[0]
        residual = updates.value - design @ level
        freedom = max(len(residual) - design.shape[1], 1)
        # Readings beside each other err alike: power has a memory that the levels lack.
        alike = min(max(float(residual[1:] @ residual[:-1]) / max(float(residual @ residual), 1e-12), 0.0), 0.9)
        variance = max(float(residual @ residual) / freedom * (1.0 + alike) / (1.0 - alike), noise_w**2, 1e-6)
    covariance = np.linalg.inv(design.T @ design / variance + np.diag(prior**2))
    return level[:-1], np.sqrt(np.diag(covariance))[:-1]


def _records(text: str) -> list[KernelRecord]:
    """Kernels in the file of one process, in host time.  Raises ProgramError for a process that could not be traced."""
    clocks: list[tuple[int, int]] = []
    kernels: list[tuple[int, int, str]] = []
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "error":
            raise ProgramError(f"{rest}; {INSTALL}", 1)
        first, second, name = f"{rest} ".split(" ", 2)
        if kind == "clock":
            clocks.append((int(second), int(first)))
        else:
            kernels.append((int(first), int(second), name.strip()))
    if not kernels:
        return []
    (there, here), (last_there, last_here) = clocks[0], clocks[-1]
    rate = (last_here - here) / (last_there - there) if last_there > there else 1.0
    return [
        KernelRecord(name=name, start_ns=here + round((start - there) * rate), end_ns=here + round((end - there) * rate))
        for start, end, name in kernels
    ]
