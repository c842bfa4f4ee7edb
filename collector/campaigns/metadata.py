"""A campaign's file metadata: known before the first row, added from the rows at the end, and read again on resume."""

from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from collector.bench import Bench
from collector.campaigns.files import CampaignSpec
from collector.campaigns.plan import CampaignPlan
from collector.dataset.log import RecoveredLog, log_path, read_log
from collector.dataset.reader import KernelDataset, read_kernel_dataset
from collector.dataset.schema import Metadata, repeated_rows
from collector.errors import CampaignError
from collector.sensing.calibration import SensorCalibration
from estimator import __version__
from estimator.display.text import known

SPOILT: Final = frozenset({"throttled", "shared_board", "sensor_stuck"})
"""Flags whose rows are not used for drift."""


def campaign_metadata(
    bench: Bench,
    spec: CampaignSpec,
    plan: CampaignPlan,
    key: Metadata,
    calibration: SensorCalibration,
    idle: list[dict[str, float | None]],
) -> Metadata:
    """File metadata that are known before the first row."""
    identity = bench.gpu.identity()
    return {
        "kind": "kernels",
        "gpu": {
            "name": identity.name,
            "specification": bench.gpu_spec.name,
            "uuid": identity.uuid,
            "pci_address": identity.pci_address,
            "compute_capability": identity.compute_capability,
            "vbios": identity.vbios,
            "power_limit_w": known(bench.gpu.power_limit_w()),
        },
        "driver": identity.driver,
        "simulated": identity.simulated,
        "sensor": calibration.document(),
        "campaign": {
            "name": spec.name,
            "digest": spec.digest,
            "description": spec.description,
            "kernels": plan.kernels,
            "anchors": plan.anchors,
            "planned_rows": len(plan.points),
            "selection": None if plan.choice is None else asdict(plan.choice),
            "measurement": asdict(spec.measurement),
        },
        "key": key,
        "seed": key["seed"],
        "idle": idle,
        "versions": {"wattprint": __version__, "numpy": np.__version__, "pyarrow": pa.__version__},
        "started_unix_s": bench.clock.unix_s(),
        "complete": False,
    }


def voltage_by_clock(table: pa.Table) -> list[dict[str, float]] | None:
    """Voltage under load by clock, from rows that no limit slowed down; None if it cannot be read."""
    by_clock: dict[float, list[float]] = {}
    columns = [table.column(name).to_pylist() for name in ("sm_clock_mhz", "voltage_v", "flags")]
    for clock, voltage, flags in zip(*columns, strict=True):
        if clock is not None and voltage is not None and "throttled" not in flags:
            by_clock.setdefault(clock, []).append(voltage)
    if not by_clock:
        return None
    return [
        {"sm_clock_mhz": clock, "voltage_v": float(np.median(values)), "std_v": float(np.std(values)), "rows": float(len(values))}
        for clock, values in sorted(by_clock.items())
    ]


def anchor_drift(table: pa.Table) -> dict[str, float]:
    """Largest relative spread (highest minus lowest over mean) of latency and power among repeated anchors.

    Scatter beyond the rows' own standard errors is scatter between runs, and temperature.
    """
    names = ("trial", "latency_s", "power_w")
    trial, latency, power = (np.array(table.column(name).to_pylist(), dtype=np.float64) for name in names)
    drift: dict[str, float] = {}
    for rows in repeated_rows(table, SPOILT):
        for name, values in (("latency", latency[rows]), ("power", power[rows])):
            told = values[np.isfinite(values)]
            if trial[rows].any() and len(told) > 1:
                drift[name] = max(drift.get(name, 0.0), float(np.ptp(told) / told.mean()))
    return drift


KeptRows = RecoveredLog | KernelDataset
"""Rows of an earlier run of the same campaign, and its metadata."""


def kept_rows(output: Path, key: Metadata) -> KeptRows | None:
    """Rows to continue from: of an unfinished log, else of a finished dataset; None without either.

    Raises CampaignError if they belong to another campaign, board or version; the message names the difference.
    """
    log = log_path(output)
    if not log.is_file() and not output.is_file():
        return None
    kept = read_log(log) if log.is_file() else read_kernel_dataset(output)
    before = kept.metadata.get("key")
    if not isinstance(before, dict):
        raise CampaignError(f"{output}: not from a campaign that can be resumed; use --fresh, or another --out")
    differs = [f"{name} was {before.get(name)!r}, is {value!r}" for name, value in key.items() if before.get(name) != value]
    if differs:
        raise CampaignError(f"{output} cannot be resumed: {'; '.join(differs)}; use the same settings, --fresh, or another --out")
    return kept
