"""Measured figures as text, with the digits that their errors justify; and the text of a calibration, for terminal and page."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from collector.sensing.calibration import SensorCalibration

TIME_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def figure(value: float, std: float | None, unit: str) -> str:
    """The text "101.2170 ± 0.0075 ms": the error with two digits, the figure to the error's last one."""
    if std is None or not math.isfinite(std) or std <= 0.0 or not math.isfinite(value):
        return f"{significant(value)} {unit}".rstrip()
    places = 1 - int(f"{std:.1e}".partition("e")[2])  # two digits of the error
    decimals = min(max(places, 0), 9)
    shown, error = (round(number, min(places, 9)) + 0.0 for number in (value, std))  # no −0
    return f"{shown:.{decimals}f} ± {error:.{decimals}f} {unit}".rstrip()


def significant(value: float, digits: int = 3) -> str:
    """A figure with an unknown error, without an exponent if it is of a common size."""
    whole = f"{value:.0f}"
    return whole if math.isfinite(value) and len(whole.lstrip("-")) > digits else f"{value:.{digits}g}"


def rounded_like(value: float, std: float) -> str:
    """A figure rounded to the digits that another figure's error justifies."""
    return figure(value, std, "").partition(" ± ")[0]


def rounded_pair(value: float, std: float, other: float, unit: str) -> tuple[str, str]:
    """A figure with its error, and another figure of the same kind with the same digits."""
    return figure(value, std, unit), f"{rounded_like(other, std)} {unit}"


def time_text(seconds: float) -> str:
    """A time in the unit that fits it: "52 µs", "12.3 ms", "7.9 s"."""
    scale, unit = next((one for one in TIME_UNITS if abs(seconds) >= one[0]), TIME_UNITS[-1] if seconds else TIME_UNITS[0])
    return f"{significant(seconds / scale)} {unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A figure of a calibration as displayed: its key and its error's, its name, its scale and unit."""

    key: str
    std_key: str | None
    name: str
    scale: float = 1.0
    unit: str = ""


SHOWN: Final = (
    Shown(key="update_period_s", std_key="update_period_std_s", name="update period", scale=1e3, unit="ms"),
    Shown(key="window_s", std_key="window_std_s", name="window", scale=1e3, unit="ms"),
    Shown(key="tau_s", std_key=None, name="time constant", scale=1e3, unit="ms"),
    Shown(key="delay_s", std_key="delay_std_s", name="delay", scale=1e3, unit="ms"),
    Shown(key="rise_time_s", std_key=None, name="rise time", scale=1e3, unit="ms"),
    Shown(key="gain", std_key="gain_std", name="gain"),
    Shown(key="offset_w", std_key="offset_std_w", name="offset", unit="W"),
    Shown(key="reading_noise_w", std_key=None, name="noise", unit="W"),
    Shown(key="residual_w", std_key=None, name="residual", unit="W"),
    Shown(key="sampled_fraction", std_key=None, name="sampled", scale=100.0, unit="%"),
)
ONLY_LOW_PASS: Final = "tau_s"
FOLLOWS: Final = {"reading_noise_w": "window_s", "residual_w": "window_s", "tau_s": "window_s", "transient": "rise_time_s"}
"""Figures that take the reason for being unknown from another figure, on which they depend."""
NOT_TOLD: Final = "not told by this record"


def shown_figures(calibration: SensorCalibration) -> dict[str, str | None]:
    """Name and text of each figure that such a sensor has; None for an unknown figure."""
    found = {}
    for one in SHOWN:
        value = getattr(calibration, one.key)
        if one.key == ONLY_LOW_PASS and value is None:
            continue  # the other averagings have no such figure
        std = _std_of(calibration, one)
        found[one.name] = None if value is None else figure(value * one.scale, None if std is None else std * one.scale, one.unit)
    return found


def why_unknown(calibration: SensorCalibration, name: str) -> str:
    """Reason why a figure, by its displayed name, or the transient, is not known."""
    key = next((one.key for one in SHOWN if one.name == name), name)
    notes = calibration.notes
    undetermined = notes.get("averaging") if calibration.averaging == "undetermined" else None
    return notes.get(key) or notes.get(FOLLOWS.get(key, "")) or undetermined or NOT_TOLD


def remarks(calibration: SensorCalibration) -> tuple[str, ...]:
    """Notes on known figures and on the record, without the reasons for unknown figures."""
    document = calibration.document()
    named = {"averaging": "averaging"} if calibration.averaging != "undetermined" else {}
    named |= {one.key: one.name for one in SHOWN if document[one.key] is not None}
    said = tuple(f"{name}: {calibration.notes[key]}" for key, name in named.items() if key in calibration.notes)
    return said + tuple(plain_notes({key: text for key, text in calibration.notes.items() if key not in document}))


def plain_notes(notes: Mapping[str, str]) -> tuple[str, ...]:
    """Notes without their keys, each text once: the keys are for programs."""
    return tuple(dict.fromkeys(notes.values()))


def _std_of(calibration: SensorCalibration, one: Shown) -> float | None:
    """A figure's error, stated or derived from the window."""
    if one.std_key is not None:
        std: float | None = getattr(calibration, one.std_key)
        return std
    window_std_s = calibration.window_std_s
    if window_std_s is None:
        return None
    if one.key == ONLY_LOW_PASS:
        return 0.5 * window_std_s
    if one.key == "sampled_fraction" and calibration.update_period_s and (calibration.sampled_fraction or 1.0) < 1.0:
        return window_std_s / calibration.update_period_s
    return None


def sensor_lines(calibration: SensorCalibration) -> list[str]:
    """A calibration for people."""
    source = (("sensor", calibration.sensor), ("field", calibration.field))
    board = (("board", calibration.gpu_uuid), ("driver", calibration.driver))
    lines = [line for of in (source, board) if (line := ", ".join(f"{name} {text}" for name, text in of if text))]
    reasons: list[str] = []
    facts = {"averaging": calibration.averaging, "transient": calibration.transient, **shown_figures(calibration)}
    for name, text in facts.items():
        lines.append(f"  {name:<14}{text or _unknown(why_unknown(calibration, name), reasons)}")
    lines += [f"  ({number}) {reason}" for number, reason in enumerate(reasons, start=1)]
    return lines + [f"  note: {text}" for text in remarks(calibration)]


def _unknown(reason: str, reasons: list[str]) -> str:
    """The word unknown with the number of its reason, which is added to `reasons` if it is new; several figures share one."""
    if reason not in reasons:
        reasons.append(reason)
    return f"unknown ({reasons.index(reason) + 1})"
