"""A bundle's card: what it was fitted on, how well, for what it holds and what it leaves open."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from estimator.bundles.content import Bundle
from estimator.display.estimates import aligned, printable
from estimator.spread import unfitted_groups


def card_document(bundle: Bundle) -> dict[str, Any]:
    """The card as JSON data; errors in percent, ranges of shapes in the units of the workload file."""
    origin, gpu = bundle.provenance, bundle.gpu
    priors = set(unfitted_groups(bundle, bundle.groups))
    return {
        "name": bundle.name,
        "version": bundle.version,
        "digest": bundle.digest,
        "gpu": {"name": gpu.name, "architecture": gpu.architecture, "num_sms": gpu.num_sms, "power_limit_w": gpu.power_limit_w},
        "simulated": bundle.simulated,
        "created_utc": origin.created_utc,
        "wattprint_version": origin.wattprint_version,
        "commit": origin.commit,
        "datasets": [
            {
                "name": one.name,
                "kind": one.kind,
                "sha256": one.sha256,
                "rows": one.rows,
                "used": one.used,
                "rejected": dict(one.rejected),
            }
            for one in origin.datasets
        ],
        "clocks_mhz": [_known(clock) for clock in bundle.clocks_mhz],
        "host_launch_s": bundle.host.launch_s,
        "errors": [_plain(row) for row in bundle.errors],
        "model_families": sorted(_families(bundle)),
        "groups": {
            name: {
                "rows": group.rows,
                "from": "prior" if name in priors else "data",
                "seen": _seen(bundle, name),
            }
            for name, group in bundle.groups.items()
        },
        "power": None
        if bundle.power is None
        else {
            "rows": bundle.power.rows,
            "reference_clock_mhz": bundle.power.reference_clock_mhz,
            "voltage_exponent": bundle.power.voltage_exponent,
            "capacitance_f": dict(bundle.power.capacitance_f),
            "capacitance_std_f": {name: _known(value) for name, value in bundle.power.capacitance_std_f.items()},
            "busy_w": bundle.power.busy_w,
            "active_w": bundle.power.active_w,
        },
        "instruction_energies": len(bundle.instruction_energies.get("terms", ())),
        "block_models": sorted(bundle.block_models),
        "notes": list(bundle.notes),
    }


def _seen(bundle: Bundle, group: str) -> dict[str, list[float]]:
    """Ranges of the shapes that served a group or a narrower group of it."""
    found: dict[str, list[float]] = {}
    for name, ranges in bundle.domain.items():
        if name == group or name.startswith(f"{group}."):
            for field, (low, high) in ranges.items():
                ends = found.setdefault(field, [low, high])
                ends[:] = min(low, ends[0]), max(high, ends[1])
    return found


def card_text(bundle: Bundle) -> str:
    """The card for people."""
    card = card_document(bundle)
    gpu = card["gpu"]
    board = ", a simulated board: its numbers say nothing about a GPU" if bundle.simulated else ""
    low, high = bundle.clocks_mhz
    lines = [
        f"{printable(bundle.name)} {bundle.version}  {bundle.digest}",
        f"  {gpu['name']} ({gpu['architecture']}, {gpu['num_sms']} SMs, {gpu['power_limit_w']:g} W){board}",
        f"  fitted {card['created_utc'][:10]} with wattprint {card['wattprint_version']}; SM clocks {low:g} to {high:g} MHz",
        *(f"  data: {_data(one)}" for one in card["datasets"]),
        "  host: " + f"{bundle.host.launch_s * 1e6:.1f} µs to launch an operator ({printable(bundle.host.source)})",
    ]
    if card["model_families"]:
        lines.append(f"  whole models: {', '.join(map(printable, card['model_families']))}")
    text = "\n".join(lines) + "\n\nerrors on rows outside the fit\n" + (_errors(card["errors"]) or "  none stated\n")
    text += "\nkernel groups, and the shapes that the fit has seen\n" + _groups(card["groups"])
    text += "\npower\n" + _power(card["power"])
    more = [f"{card['instruction_energies']} energies of instructions and transactions"] if card["instruction_energies"] else []
    more += [f"block-count models: {', '.join(map(printable, card['block_models']))}"] if card["block_models"] else []
    more += [f"note: {printable(note)}" for note in card["notes"]]
    return text + ("\n" + "".join(f"{line}\n" for line in more) if more else "")


def _data(one: Mapping[str, Any]) -> str:
    rejected = f", rejected: {', '.join(f'{printable(why)} {count}' for why, count in one['rejected'].items())}" if one["rejected"] else ""
    return f"{printable(one['name'])}, {one['kind']}, {one['used']} of {one['rows']} rows, sha256 {one['sha256'][:12]}…{rejected}"


def _errors(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each group of rows: mean absolute error and bias in percent, and how many lay in their 90 % interval."""
    if not rows:
        return ""
    table = [["rows", "latency %", "bias", "power %", "bias", "in 90 % interval", "of"]]
    for row in rows:
        latency, power = (row.get(name) or {} for name in ("latency", "power"))
        table.append(
            [
                str(row.get("n", "–")),
                *(_figure(one.get(name)) for one in (latency, power) for name in ("mape", "bias")),
                f"{100.0 * row['coverage']:.0f} %" if isinstance(row.get("coverage"), float) else "–",
                printable(" ".join(str(row[name]) for name in ("gpu", "family", "operator", "precision") if row.get(name))),
            ]
        )
    return aligned(table, left_columns={6})


def _groups(groups: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [["group", "from", "rows", "seen"]]
    for name, group in groups.items():
        spans = (f"{field} {low:g}" + (f"–{high:g}" if high != low else "") for field, (low, high) in group["seen"].items())
        rows.append([name, group["from"], str(group["rows"]), ", ".join(spans) or "nothing"])
    return aligned(rows, left_columns={0, 1, 3})


def _power(power: Mapping[str, Any] | None) -> str:
    if power is None:
        return "  no power coefficients: latency alone\n"
    rows = [["module", "C [nF]", "±"]]
    for name, value in power["capacitance_f"].items():
        std = power["capacitance_std_f"].get(name)
        rows.append([name, f"{value * NANO_IN_ONE:.3g}", "–" if std is None else f"{std * NANO_IN_ONE:.2g}"])
    static = f"  running SMs {power['busy_w']:.1f} W, board in use {power['active_w']:.1f} W"
    point = f" at {power['reference_clock_mhz']:g} MHz; core voltage to the power of {power['voltage_exponent']:g}; {power['rows']} rows\n"
    return aligned(rows, left_columns={0}) + static + point


NANO_IN_ONE: Final = 1e9


def _families(bundle: Bundle) -> set[str]:
    stated = bundle.uncertainty.get("latency", {})
    names = stated.get("families", ()) if isinstance(stated, Mapping) else ()
    return {name for name in names if isinstance(name, str)}


def _figure(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) and math.isfinite(value) else "–"


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """Frozen data as JSON's own types; numbers that are not finite are null."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return _known(value) if isinstance(value, float) else value
