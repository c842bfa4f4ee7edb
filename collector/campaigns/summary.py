"""What a dataset says of itself: file metadata known before the first row, and what its rows add at the end."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pyarrow as pa

from collector.bench import Bench
from collector.campaigns.files import CampaignSpec
from collector.campaigns.outcome import known
from collector.campaigns.plan import CampaignPlan
from collector.dataset.schema import IDENTITY_COLUMNS
from collector.sensing.calibration import SensorCalibration
from estimator import __version__

SPOILT: Final = frozenset({"throttled", "shared_board", "sensor_stuck"})
"""Flags with which a row says nothing about drift."""


def campaign_metadata(
    bench: Bench,
    spec: CampaignSpec,
    plan: CampaignPlan,
    key: Mapping[str, Any],
    calibration: SensorCalibration,
    idle: list[dict[str, float | None]],
    warm_c: float,
) -> dict[str, Any]:
    """File metadata as far as they are known before the first row."""
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
        "key": dict(key),
        "seed": key["seed"],
        "idle": idle,
        "warm_c": known(warm_c),
        "versions": {"wattprint": __version__, "numpy": np.__version__, "pyarrow": pa.__version__},
        "started_unix_s": bench.clock.unix_s(),
        "complete": False,
    }


def voltage_by_clock(table: pa.Table) -> list[dict[str, float]] | None:
    """Voltage under load by clock, from rows that no limit slowed down; None where it cannot be read."""
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

    What their scatter is beyond the rows' own standard errors is scatter between runs, and temperature.
    """
    columns = [table.column(name).to_pylist() for name in (*IDENTITY_COLUMNS, "trial", "latency_s", "power_w", "flags")]
    groups: dict[tuple[Any, ...], list[tuple[float | None, float | None]]] = {}
    repeated = set()
    for *identity, trial, latency, power, flags in zip(*columns, strict=True):
        if SPOILT.intersection(flags):
            continue
        groups.setdefault(tuple(identity), []).append((latency, power))
        if trial:
            repeated.add(tuple(identity))
    drift: dict[str, float] = {}
    for group in repeated:
        for index, name in enumerate(("latency", "power")):
            values = [value for pair in groups[group] if (value := pair[index]) is not None]
            if len(values) > 1:
                spread = float((max(values) - min(values)) / np.mean(values))
                drift[name] = max(drift.get(name, 0.0), spread)
    return drift


def idle_drift(before: Any, after: list[dict[str, float | None]]) -> dict[str, float]:
    """Largest relative change of power at rest from the beginning to the end, clock by clock; empty where it cannot be told."""
    first = {entry.get("sm_clock_mhz"): entry.get("power_w") for entry in before or ()}
    changes = [
        abs(power - start) / start
        for entry in after
        if (power := entry["power_w"]) is not None and (start := first.get(entry["sm_clock_mhz"]))
    ]
    return {"idle": max(changes)} if changes else {}
