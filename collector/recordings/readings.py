"""Polled readings of one board from a log: `t_s,power_w`, or the output of nvidia-smi."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from collector.devices.nvml import SUPERCHIP, pci_key
from collector.errors import SensorError
from collector.recordings.columns import LONGEST_SHOWN, Columns, LogFile, numbers, open_log, read_columns, shown_names, stamps_s, texts
from collector.recordings.rows import ordered
from collector.sensing.catalogue import POWER_COLUMNS, is_uuid
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

TIME, POWER, STAMP = "t_s", "power_w", "timestamp"
NAME: Final = "name"
BOARD_COLUMNS: Final = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
"""Columns that name a board, best first."""
POWER_UNITS: Final = {"": 1.0, "W": 1.0, "mW": 1e-3}
"""Factors from a unit to watts; a column without a unit is in watts, like nvidia-smi's."""


@frozen
class RecordedReadings:
    """Polls of one board's power: `time_s` ascending, `power_w` (n,), repeats included.

    `column` is the log's column, `board` the board's name in the log ("" without one).  `local_time`:
    `time_s` is a wall clock's time of an unknown zone, as seconds since 1970 without one.  `left_out` says which rows could not be
    used, `remarks` how the log was read.
    """

    time_s: Array
    power_w: Array
    column: str
    board: str
    local_time: bool
    left_out: tuple[str, ...]
    remarks: tuple[str, ...]


def read_readings(path: Path, column: str | None = None, board: str | None = None) -> RecordedReadings:
    """Readings from a CSV or Parquet log; `column` names the power, `board` the board (index, UUID or PCI address) of several.

    Raises SensorError, with the reason in one line, for a file that cannot be used.
    """
    log = open_log(path)
    bare = [bare_name(name) for name in log.names]
    local = TIME not in bare
    if local and (STAMP not in bare or len(bare) < 2):
        raise SensorError(f"{path}: needs the columns {TIME},{POWER}, or an nvidia-smi log with its header; found: {shown_names(bare)}")
    boards = [bare.index(name) for name in BOARD_COLUMNS if name in bare]
    if board is not None and not boards:
        raise SensorError(f"{path}: names no boards, so that --gpu {board} cannot be chosen; log with --query-gpu=index,… or leave it out")
    powers = _power_places(log, bare, column, local)
    names = [bare.index(NAME)] if NAME in bare else []
    table = read_columns(log, [log.place(STAMP if local else TIME, bare), *powers, *boards, *names])
    time_s = stamps_s(table.arrays[0]) if local else numbers(table.arrays[0])
    watts = [_watts(cells, log.names[place], log) for cells, place in zip(table.arrays[1:], powers, strict=False)]
    _check_figures(log, table, time_s, watts, (STAMP if local else TIME, bare[powers[0]]))
    superchip = bool(names) and any(SUPERCHIP in name for name in texts(table.arrays[-1])[:1].to_pylist())
    kept, chosen = slice(None), ""
    if boards:
        chosen, kept = _one_board([texts(cells) for cells in table.arrays[1 + len(powers) : 1 + len(powers) + len(boards)]], board, log)
    filled = [place for place, power in enumerate(watts) if np.any(np.isfinite(power[kept]))]
    if not filled:
        raise SensorError(f"{path}: {' and '.join(bare[index] for index in powers)} hold no figure of this board")
    place = filled[-1] if superchip else filled[0]
    rows = ordered(time_s[kept], watts[place][kept], str(path))
    remarks = ["the last line has no end and was left out: its last figure may be cut"] if log.cut else []
    if column is None and len(powers) > 1:
        remarks.append(f"column {bare[powers[place]]} of {', '.join(bare[index] for index in powers)}; --column names another")
    if superchip and bare[powers[place]] == POWER_COLUMNS[0]:
        remarks.append(f"{POWER_COLUMNS[0]} of a {SUPERCHIP} is the power of the whole module; power.draw.average is the GPU's")
    stray = (f"{len(table.stray)} line(s) are no row of the table and were left out, the first: {table.stray[0]!r}",) if table.stray else ()
    return RecordedReadings(
        time_s=rows.time_s,
        power_w=rows.power_w,
        column=bare[powers[place]],
        board=chosen,
        local_time=local,
        left_out=(*rows.remarks, *stray),
        remarks=tuple(remarks),
    )


def bare_name(name: str) -> str:
    """A column's name without its unit: `power.draw [W]` → `power.draw`."""
    return re.sub(r"\s*\[[^\]]*\]\s*$", "", name).strip().lower()


def _power_places(log: LogFile, bare: Sequence[str], column: str | None, local: bool) -> list[int]:
    """Positions of the power columns to try, best first: the named one, or all known ones.  Raises SensorError."""
    if column is None:
        known = (*POWER_COLUMNS, POWER) if local else (POWER,)
        found = [log.place(name, list(bare)) for name in known if name in bare or not local]
        if not found:
            raise SensorError(f"{log.path}: no power column; log with --query-gpu=timestamp,power.draw, or name one with --column")
        return found
    return [log.place(bare_name(column), list(bare))]


def _watts(cells: Any, name: str, log: LogFile) -> Array:
    """Power of a column [W], by the unit in its header.  Raises SensorError for a unit that is not one of power."""
    unit = next(iter(re.findall(r"\[([^\]]*)\]\s*$", name)), "").strip()
    if unit not in POWER_UNITS:
        raise SensorError(
            f"{log.path}: column {name!r} has the unit [{unit}], which is none of power; power comes in {', '.join(POWER_UNITS)}"
        )
    return numbers(cells, unit or "W") * POWER_UNITS[unit]


def _check_figures(log: LogFile, table: Columns, time_s: Array, watts: Sequence[Array], names: tuple[str, str]) -> None:
    """Raises SensorError for a log without rows, and for columns without a readable cell: the message shows the first cell."""
    if not len(time_s):
        said = f"no line has the {len(log.names)} cells of the header; the first: {table.stray[0]!r}" if table.stray else "has no rows"
        raise SensorError(f"{log.path}: {said}")
    read = (f"seconds under {TIME}, or 2024/03/10 09:00:00.123 under {STAMP}", "figures of power")
    known = (np.any(np.isfinite(time_s)), any(np.any(np.isfinite(power)) for power in watts))
    for place, name in enumerate(names):
        if not known[place]:
            first = str(table.arrays[place][0].as_py())[:LONGEST_SHOWN]
            raise SensorError(f"{log.path}: no cell of {name} can be read, the first is {first!r}; read are {read[place]}")


def _one_board(columns: Sequence[Any], board: str | None, log: LogFile) -> tuple[str, Any]:
    """The board's name (the UUID if the log has it) and the mask of its rows, from the columns that name boards, best first.

    Raises SensorError if the board is ambiguous.
    """
    names = columns[0]
    present = sorted(name for name in pc.unique(names).to_pylist() if name)
    where = f"{log.path}: holds {len(present)} boards ({shown_names(present)})"
    if board is None:
        if len(present) != 1:
            raise SensorError(f"{where}; choose one with --gpu")
        wanted = present[0]
    else:
        found = [(column, name) for column in columns for name in pc.unique(column).to_pylist() if name and _named_so(name, board)]
        if len({name for column, name in found if column is found[0][0]}) != 1:
            raise SensorError(f"{where}, {'several' if found else 'none'} of them {board!r}; choose one with --gpu")
        names, wanted = found[0]
    kept = pc.fill_null(pc.equal(names, wanted), False)
    uuids = {name for column in columns for name in pc.unique(column.filter(kept)).to_pylist() if name and is_uuid(name)}
    return uuids.pop() if len(uuids) == 1 else wanted, kept.to_numpy(zero_copy_only=False)


def _named_so(name: str, asked: str) -> bool:
    """Whether a log's name of a board matches the requested one: the same text or the same PCI address."""
    name, asked = name.lower(), asked.strip().lower()
    place = pci_key(name)
    return name == asked or (place is not None and place == pci_key(asked))
