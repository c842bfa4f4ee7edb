"""Measured figures as text, with the digits that their errors justify; and the text of a calibration, for terminal and page."""

import math
from typing import Final

from collector.sensing.calibration import SensorCalibration


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


SHOWN: Final = {
    "update_period_s": (1e3, "ms"), "window_s": (1e3, "ms"), "tau_s": (1e3, "ms"), "delay_s": (1e3, "ms"), "rise_time_s": (1e3, "ms"),
    "gain": (1.0, ""), "offset_w": (1.0, "W"), "reading_noise_w": (1.0, "W"), "residual_w": (1.0, "W"), "sampled_fraction": (100.0, "%"),
}  # fmt: skip
"""Figures of a calibration that people are shown, with scale and unit."""


def sensor_lines(calibration: SensorCalibration) -> list[str]:
    """A calibration for people: what it belongs to, its figures, and the notes with the figures that they are on."""
    named = (("sensor", calibration.sensor, "field", calibration.field), ("board", calibration.gpu_uuid, "driver", calibration.driver))
    lines = [", ".join(f"{name} {text}" for name, text in (four[:2], four[2:]) if text) for four in named if four[1] or four[3]]
    lines += [f"  {name:<18}{getattr(calibration, name) or 'unknown'}" for name in ("averaging", "transient")]
    for key, (scale, unit) in SHOWN.items():
        name = _base(key)
        value, std = getattr(calibration, key), getattr(calibration, f"{name}_std{key.removeprefix(name)}", None)
        text = "unknown" if value is None else figure(value * scale, None if std is None else std * scale, unit)
        lines.append(f"  {name.replace('_', ' '):<18}{text}")
    subjects: dict[str, list[str]] = {}
    for key, text in calibration.notes.items():
        subjects.setdefault(text, []).extend([_base(key).replace("_", " ")] if hasattr(calibration, key) else [])
    return lines + [": ".join(part for part in ("  note", ", ".join(keys), text) if part) for text, keys in subjects.items()]


def _base(key: str) -> str:
    """A figure's key without its unit."""
    return key.removesuffix("_s").removesuffix("_w")
