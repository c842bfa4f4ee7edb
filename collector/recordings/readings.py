"""Polled readings of one board from a log: `t_s,power_w`, or what nvidia-smi wrote."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.devices.nvml import SUPERCHIP
from collector.devices.possible_power import LEAST_POWER_W
from collector.errors import SensorError
from collector.recordings.nvidia_smi import (
    PLAIN_POWER,
    PLAIN_TIME,
    POWER_COLUMNS,
    READ_STAMPS,
    STAMP,
    bare_name,
    board_columns,
    check_once,
    check_power,
    is_nvidia_smi,
    is_uuid,
    named_so,
    power_columns,
    stamps_s,
    unit_factor,
    watts,
)
from collector.recordings.ordering import ordered
from collector.recordings.shared_log import check_one_board
from collector.recordings.text_columns import LONGEST_SHOWN, LogFile, StrayLines, numbers, open_log, read_columns, shown_names
from estimator.quantities import Array
from estimator.specifications import near_match

TIME: Final = PLAIN_TIME
POWER: Final = PLAIN_POWER
BOARD_NAME: Final = "name"
SMI_LOG: Final = "nvidia-smi --query-gpu=timestamp,power.draw.instant --format=csv -lms 5"
HEADER: Final = "timestamp, power.draw [W]"
STAMP_CELL: Final = re.compile(STAMP)
DMON_WORDS: Final = ("pwr", "power")
"""Words in the header of nvidia-smi's and DCGM's dmon, which begins with #."""
ONE_BOARD: Final = "give the rows of one board"
ONE_BOARD_LOG: Final = "log with --query-gpu=timestamp,index,power.draw and choose one with --gpu, or one board alone with -i INDEX"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReadings:
    """Polls of one board's power: `time_s` ascending, `power_w` (n,), repeats included.

    `column` is the log's column, `board` what names the board in it ("" where nothing does).  `local_time` says that
    `time_s` is a wall clock's time of an unknown zone, as seconds since 1970 without one.  `remarks` say what was put right;
    `left_out` rows could not be used, a packed file's break counts as one; `coarse_stamps` is what is wrong with stamps that most
    rows share, "" where nothing is.
    """

    time_s: Array
    power_w: Array
    column: str
    board: str
    local_time: bool
    left_out: int
    remarks: tuple[str, ...]
    coarse_stamps: str


def read_readings(path: Path, column: str | None = None, board: str | None = None) -> RecordedReadings:
    """Readings from a CSV or Parquet log; `column` names the power, `board` the board (index, UUID or PCI address) of several.

    Raises SensorError for a file that cannot be used, in one line that says why.
    """
    log = open_log(path)
    bare = [bare_name(name) for name in log.names]
    if TIME in bare:
        if board is not None:
            raise SensorError(f"{path}: names no boards, so that --gpu {board} cannot be chosen; leave --gpu out")
        return _plain(log, bare, column)
    if is_nvidia_smi(log.names):
        return _nvidia_smi(log, column, board)
    raise SensorError(f"{path}: {_no_header(log)}")


def _no_header(log: LogFile) -> str:
    """What is wrong with a header that names no column that is known, and what to do."""
    if any(STAMP_CELL.match(name) for name in log.names):
        row = ", ".join(log.names)[:LONGEST_SHOWN]
        return f"has no header, its first line is a row ({row}); log without noheader, or write {HEADER!r} above"
    found = shown_names([bare_name(name) for name in log.names])
    said = ",".join(log.names)
    if said.startswith("#") and any(word in said.lower() for word in DMON_WORDS):
        return f"a table of dmon ({said[:LONGEST_SHOWN]!r}), whose rows have no time, or whole seconds; log with {SMI_LOG}"
    return f"needs the columns {TIME},{POWER}, or an nvidia-smi log with its header; found: {found}"


def _plain(log: LogFile, bare: Sequence[str], column: str | None) -> RecordedReadings:
    wanted = bare_name(column) if column is not None else POWER
    if wanted not in bare:
        raise SensorError(f"{log.path}: no column {wanted!r}{near_match(wanted, bare)}; its columns: {shown_names(bare)}")
    stray = StrayLines()
    place = only_place(wanted, bare, log)
    if column is not None:
        check_power(wanted, log.names, str(log.path), own_names=True)
    factor = unit_factor(log.names[place], str(log.path))
    time, power = gathered(log, [only_place(TIME, bare, log), place], stray, factor)
    _check_figures(log, time, [power], [log.names[bare.index(TIME)], log.names[place]], stray)
    check_one_board(time, power, str(log.path), ONE_BOARD, fine=False)
    rows = ordered(time, power, str(log.path))
    _check_drawn(rows.power_w, log)
    return RecordedReadings(
        time_s=rows.time_s,
        power_w=rows.power_w,
        column=wanted,
        board="",
        local_time=False,
        left_out=rows.left_out + stray.count,
        coarse_stamps=rows.coarse_stamps,
        remarks=(*rows.remarks, *stray.remark(), *log.remark()),
    )


def only_place(name: str, names: Sequence[str], log: LogFile) -> int:
    """Where a column stands.  Raises SensorError where two have its name."""
    check_once(name, names, str(log.path))
    return names.index(name)


def gathered(log: LogFile, wanted: Sequence[int], stray: StrayLines | None = None, factor: float = 1.0) -> list[Array]:
    """A column of times and columns of power [W], `factor` being the unit of their headers, as arrays.

    The last row of a text that was cut is left out, lines that are no row are counted in `stray`.
    """
    parts = [[numbers(first), *(watts(item, factor) for item in rest)] for first, *rest in read_columns(log, wanted, stray)]
    joined = [np.concatenate([part[place] for part in parts]) if parts else np.empty(0) for place in range(len(wanted))]
    return [column[:-1] for column in joined] if log.cut_row else joined


def _of_superchip(log: LogFile, bare: Sequence[str]) -> bool:
    """Whether the log names a board whose instant power is that of the whole module (Yang, Adamek and Armour, figure 14)."""
    if BOARD_NAME not in bare:
        return False
    first = next(iter(read_columns(log, [bare.index(BOARD_NAME)], StrayLines())), None)
    return first is not None and any(SUPERCHIP in str(name) for name in _texts(first[0])[:1].to_pylist())


def _nvidia_smi(log: LogFile, column: str | None, board: str | None) -> RecordedReadings:
    """Readings from nvidia-smi's log; where no column is named the first that holds figures."""
    bare = [bare_name(name) for name in log.names]
    check_once("timestamp", bare, str(log.path))
    powers = power_columns(log.names, column, str(log.path))
    superchip = _of_superchip(log, bare)
    if superchip:
        powers = powers[::-1]
    boards = board_columns(log.names)
    if board is not None and not boards:
        raise SensorError(
            f"{log.path}: names no boards, so that --gpu {board} cannot be chosen; log with --query-gpu=index,… or leave it out"
        )
    wanted = [bare.index("timestamp"), *powers, *boards]
    factors = [unit_factor(log.names[index], str(log.path)) for index in powers]
    times, figures = [], []
    names: list[list[Any]] = [[] for _ in boards]
    stray = StrayLines()
    for columns in read_columns(log, wanted, stray):
        times.append(stamps_s(columns[0]))
        figures.append(np.stack([watts(item, factor) for item, factor in zip(columns[1 : 1 + len(powers)], factors, strict=True)]))
        for place, column_names in enumerate(names):
            column_names.append(_texts(columns[1 + len(powers) + place]))
    time, power = (np.concatenate(times), np.concatenate(figures, axis=1)) if times else (np.empty(0), np.empty((len(powers), 0)))
    _check_figures(log, time, power, [log.names[index] for index in wanted[: 1 + len(powers)]], stray)
    if log.cut_row:
        time[-1] = np.nan
    if boards:
        chosen, kept = _one_board([pa.concat_arrays(parts) for parts in names], board, log)
        time, power = time[kept], power[:, kept]
    else:
        chosen = ""
    whole = slice(None, -1) if log.cut_row and len(time) and not np.isfinite(time[-1]) else slice(None)
    time, power = time[whole], power[:, whole]
    filled = np.flatnonzero(np.any(np.isfinite(power), axis=1))
    if not len(filled):
        raise SensorError(f"{log.path}: {' and '.join(bare[index] for index in powers)} hold no figure of this board")
    place = int(filled[0])
    if not boards:
        check_one_board(time, power[place], str(log.path), ONE_BOARD_LOG, fine=True)
    rows = ordered(time, power[place], str(log.path))
    _check_drawn(rows.power_w, log)
    remarks = (*rows.remarks, *stray.remark(), *log.remark())
    if column is None and len(powers) > 1:
        remarks = (*remarks, f"column {bare[powers[place]]} of {', '.join(bare[index] for index in powers)}; --column names another")
    if superchip and bare[powers[place]] == POWER_COLUMNS[0]:
        remarks = (*remarks, f"{POWER_COLUMNS[0]} of a {SUPERCHIP} is the power of the whole module; power.draw.average is the GPU's")
    return RecordedReadings(
        time_s=rows.time_s,
        power_w=rows.power_w,
        column=bare[powers[place]],
        board=chosen,
        local_time=True,
        left_out=rows.left_out + stray.count,
        coarse_stamps=rows.coarse_stamps,
        remarks=remarks,
    )


def _check_figures(log: LogFile, time_s: Array, power_w: Sequence[Array] | Array, names: Sequence[str], stray: StrayLines) -> None:
    """Raises SensorError for a log without rows, and for columns none of whose cells can be read: the first cell shows why."""
    if not len(time_s):
        if stray.count:
            raise SensorError(f"{log.path}: no line has the {len(log.names)} cells of the header; the first: {stray.first!r}")
        raise SensorError(f"{log.path}: has a header and no rows")
    first = [repr(cell[:LONGEST_SHOWN]) for cell in stray.cells]
    if not np.any(np.isfinite(time_s)):
        name = bare_name(names[0])
        read = "seconds" if name == TIME else READ_STAMPS
        raise SensorError(f"{log.path}: column {name} has no stamp that can be read, the first is {first[0]}; read are {read}")
    if not any(np.any(np.isfinite(column)) for column in power_w):
        cells = ", ".join(f"{bare_name(name)} {cell}" for name, cell in zip(names[1:], first[1:], strict=False))
        raise SensorError(f"{log.path}: no figure of power can be read; the first row has {cells}")


def _check_drawn(power_w: Array, log: LogFile) -> None:
    """Raises SensorError where no reading is one that a board can draw: another unit, or a driver that does not know."""
    most_w = float(np.max(power_w))
    if most_w < LEAST_POWER_W:
        raise SensorError(
            f"{log.path}: the largest of {len(power_w)} readings is {most_w:.4g} W, less than any board draws: give power in watts, or "
            "read a field that this driver knows"
        )


def _texts(column: Any) -> Any:
    """A column as text, stripped."""
    return pc.utf8_trim_whitespace(column.cast(pa.string(), safe=False))


def _one_board(columns: Sequence[Any], board: str | None, log: LogFile) -> tuple[str, Any]:
    """The board's name and which rows are its, from the columns that name boards, best first.

    The name is the UUID where the log has it.  Raises SensorError where it is open which board is meant.
    """
    names = columns[0]
    present = sorted(name for name in pc.unique(names).to_pylist() if name)
    shown = ", ".join(" ".join(name.split())[:LONGEST_SHOWN] for name in present[:8])
    where = f"{log.path}: holds {len(present)} boards ({shown})"
    if board is None:
        if len(present) != 1:
            raise SensorError(f"{where}; choose one with --gpu" if present else f"{log.path}: names no board in any row")
        wanted = present[0]
    else:
        found = [(column, name) for column in columns for name in pc.unique(column).to_pylist() if name and named_so(name, board)]
        if not found:
            raise SensorError(f"{where}, none of them {board!r}; choose one with --gpu")
        if len({name for column, name in found if column is found[0][0]}) > 1:
            raise SensorError(f"{where}, several of them {board!r}; give the whole UUID, or choose another name with --gpu")
        names, wanted = found[0]
    kept = pc.fill_null(pc.equal(names, wanted), False).to_numpy(zero_copy_only=False)
    uuids = {name for column in columns for name in pc.unique(column.filter(pa.array(kept))).to_pylist() if name and is_uuid(name)}
    return uuids.pop() if len(uuids) == 1 else wanted, kept
