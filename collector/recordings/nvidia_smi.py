"""Logs of nvidia-smi: which columns are time, power and board, and what a local stamp means."""

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.devices.nvml import FEWEST_UUID_CHARACTERS, pci_key
from collector.errors import SensorError
from collector.recordings.text_columns import QUICK_UNIT, is_text, numbers, plain
from estimator.quantities import Array
from estimator.specifications import near_match

POWER_COLUMNS: Final = ("power.draw.instant", "power.draw", "power.draw.average")
"""Columns with a board's power, the one that averages least first."""
BOARD_COLUMNS: Final = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
"""Columns that name a board, best first."""
TIME_COLUMN: Final = "timestamp"
STAMP: Final = r"^\d{4}[/-]\d{2}[/-]\d{2}[ T]\d{2}:\d{2}:\d{2}([.]\d{1,6})?$"
READ_STAMPS: Final = "2024/03/10 09:00:00.123, local time, and 2024-03-10T09:00:00.123; seconds go under t_s"
UUID_MARK: Final = "GPU-"
US_PER_S: Final = 1e6
WHOLE, FRACTION = 19, 7
"""Characters of a stamp to its seconds, and of what follows them that counts: a point and microseconds."""
NOTHING: Final = pa.scalar(None, pa.string())
POWER_UNITS: Final = {"": 1.0, "W": 1.0, "mW": 1e-3, "kW": 1e3, "MW": 1e6}
"""What figures of a unit are multiplied with to be watts; a column without a unit is in watts, as nvidia-smi's are."""
WATT_DECIMALS: Final = 9
"""What multiplying by a unit leaves behind this is rounding: one power in two units is one reading, no change of it."""
CELL_FIGURE: Final = r"^[-+0-9.]+([eE][-+]?[0-9]+)?\s*"
LONGEST_UNIT: Final = 4
POWER_WORDS: Final = ("power", "watt")
NO_DRAW_WORDS: Final = ("limit", "management", "cap", "brake", "reasons")
"""Columns that name power are a board's draw, but for limits and settings."""
PLAIN_TIME, PLAIN_POWER = "t_s", "power_w"
OTHER_WORDS: Final = ("temperature", "utilization", "clocks", "memory", "fan", "pstate", "energy", "voltage", "current")
"""Of columns with names of a user's own, those that are plainly no power."""


def bare_name(name: str) -> str:
    """A column's name without its unit: `power.draw [W]` → `power.draw`."""
    return re.sub(r"\s*\[[^\]]*\]\s*$", "", name).strip().lower()


def unit_factor(name: str, where: str) -> float:
    """What a column's figures are multiplied with to be watts.  Raises SensorError for a unit that is none of power."""
    unit = re.search(r"\[([^\]]*)\]\s*$", name)
    said = unit.group(1).strip() if unit is not None else ""
    if said not in POWER_UNITS:
        known = ", ".join(f"[{known}]" for known in POWER_UNITS if known)
        raise SensorError(f"{where}: column {name!r} has the unit [{said}], which is none of power; power comes in {known}")
    return POWER_UNITS[said]


def watts(column: Any, factor: float) -> Array:
    """A column's figures in watts: by the unit in the cell where there is one, else by its header's `factor`; nan for all else."""
    column = plain(column)
    if not is_text(column):
        return np.asarray(numbers(column) * factor)
    trimmed = pc.utf8_trim_whitespace(column)
    if factor == 1.0:
        try:
            return np.asarray(pc.utf8_rtrim(trimmed, QUICK_UNIT).cast(pa.float64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:  # another unit, or a cell that is no number
            pass
    figures = numbers(column)
    units = pc.utf8_slice_codeunits(pc.replace_substring_regex(trimmed, CELL_FIGURE, ""), 0, LONGEST_UNIT).dictionary_encode()
    factors = np.array([POWER_UNITS.get(unit, np.nan) if unit else factor for unit in units.dictionary.to_pylist()] or [factor])
    places = pc.fill_null(units.indices, 0).to_numpy(zero_copy_only=False)
    rounded: Array = np.round(figures * factors[places], WATT_DECIMALS)
    return rounded


def check_power(name: str, names: Sequence[str], where: str, *, own_names: bool = False) -> None:
    """Raises SensorError for a column that is no draw of power by its name, and lists those that are.

    With `own_names` the columns are a user's, and only names that are plainly something else's are refused.
    """
    bare = bare_name(name)
    other = bare == PLAIN_TIME or any(word in bare for word in (*OTHER_WORDS, *NO_DRAW_WORDS))
    if _names_power(bare) or (own_names and not other):
        return
    powers = ", ".join(bare_name(column) for column in names if _names_power(bare_name(column)))
    raise SensorError(f"{where}: column {bare!r} is no power; its power columns: {powers or 'none'}")


def _names_power(bare: str) -> bool:
    return any(word in bare for word in POWER_WORDS) and not any(word in bare for word in NO_DRAW_WORDS)


def is_nvidia_smi(names: Sequence[str]) -> bool:
    """Whether a header is one of nvidia-smi's query logs."""
    bare = [bare_name(name) for name in names]
    return TIME_COLUMN in bare and len(bare) > 1


def power_columns(names: Sequence[str], wanted: str | None, where: str) -> tuple[int, ...]:
    """Positions of the power columns to try, best first: the named one, or all that are known.

    Raises SensorError for a name that is not there, and where there is no power at all.
    """
    bare = [bare_name(name) for name in names]
    if wanted is not None:
        asked = bare_name(wanted)
        if asked not in bare:
            raise SensorError(f"{where}: no column {wanted!r}{near_match(asked, bare)}; its columns: {', '.join(bare)}")
        check_power(asked, names, where)
        found: tuple[int, ...] = (bare.index(asked),)
    else:
        found = tuple(bare.index(name) for name in (*POWER_COLUMNS, PLAIN_POWER) if name in bare)
    if not found:
        raise SensorError(f"{where}: no power column; log with --query-gpu=timestamp,power.draw, or name one with --column")
    for place in found:
        check_once(bare[place], bare, where)
        unit_factor(names[place], where)
    return found


def check_once(name: str, bare: Sequence[str], where: str) -> None:
    """Raises SensorError where two columns have a name."""
    if bare.count(name) > 1:
        raise SensorError(f"{where}: {bare.count(name)} columns are named {name}; keep one")


def board_columns(names: Sequence[str]) -> tuple[int, ...]:
    """Positions of the columns that name the board, best first."""
    bare = [bare_name(name) for name in names]
    return tuple(bare.index(name) for name in BOARD_COLUMNS if name in bare)


def is_uuid(name: str) -> bool:
    """Whether a board's name is a UUID."""
    return name.upper().startswith(UUID_MARK)


def named_so(name: str, asked: str) -> bool:
    """Whether a log's name of a board is what is asked for: the same text, the beginning of a UUID, the same PCI address."""
    name, asked = name.strip().lower(), asked.strip().lower()
    if name == asked:
        return True
    if is_uuid(name):
        return is_uuid(asked) and len(asked) >= FEWEST_UUID_CHARACTERS and name.startswith(asked)
    place = pci_key(name)
    return place is not None and place == pci_key(asked)


def stamps_s(column: Any) -> Array:
    """Stamps as seconds since 1970, as if they were universal time; nan where a cell is no stamp."""
    column = plain(column)
    if not is_text(column):
        return np.full(len(column), np.nan)
    text = pc.utf8_trim_whitespace(column)
    quick = _even_stamps(text)
    if quick is not None:
        return quick
    text = pc.if_else(pc.match_substring_regex(text, STAMP), text, NOTHING)
    part = pc.utf8_slice_codeunits(text, WHOLE, WHOLE + FRACTION)
    fraction = pc.if_else(pc.equal(part, ""), "0", part).cast(pa.float64())
    result: Array = _whole_seconds(pc.utf8_slice_codeunits(text, 0, WHOLE)) + _filled(fraction)
    return result


def _even_stamps(text: Any) -> Array | None:
    """The same for stamps that all have a fraction and nothing behind it, as nvidia-smi writes them; None for others.

    Many polls share a second, which is then read once.
    """
    if not pc.all(pc.equal(pc.utf8_slice_codeunits(text, WHOLE + FRACTION, WHOLE + FRACTION + 1), "")).as_py():
        return None
    try:
        fraction = pc.utf8_slice_codeunits(text, WHOLE, WHOLE + FRACTION).cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    parts = _filled(fraction)
    if not np.all((parts >= 0.0) & (parts < 1.0)):
        return None
    coded = pc.utf8_slice_codeunits(text, 0, WHOLE).dictionary_encode()
    seconds = _whole_seconds(pc.if_else(pc.match_substring_regex(coded.dictionary, STAMP), coded.dictionary, NOTHING))
    result: Array = seconds[coded.indices.to_numpy(zero_copy_only=False)] + parts
    return result


def _whole_seconds(text: Any) -> Array:
    """Stamps to the second as seconds since 1970; nan where there is none."""
    plain = pc.replace_substring(pc.replace_substring(text, "/", "-"), "T", " ")
    return _filled(pc.strptime(plain, format="%Y-%m-%d %H:%M:%S", unit="s", error_is_null=True).cast(pa.int64()))


def _filled(column: Any) -> Array:
    """Figures as float64, nan where there is none."""
    figures = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.float64)
    filled: Array = np.where(pc.is_null(column).to_numpy(zero_copy_only=False), np.nan, figures)
    return filled
