"""Polled readings of one board from a log, `t_s,power_w` or the output of nvidia-smi, and columns of CSV files."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from collector.devices.nvml import SUPERCHIP, pci_key
from collector.errors import SensorError
from collector.recordings.rows import ordered
from collector.sensing.catalogue import POWER_COLUMNS, is_uuid
from estimator.vocabulary.documents import LARGEST, printable
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.regular_files import read_regular
from estimator.vocabulary.values import frozen

MOST_BYTES: Final = 1 << 29
"""Largest size of a file: ten million rows, a day of polls 10 ms apart."""
LONGEST_HEADER: Final = 1 << 15
LONGEST_SHOWN, MOST_NAMES = 80, 12
"""Greatest numbers of characters of a line and of column names in a message."""
US_PER_S: Final = 1e6
UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks of a log that PowerShell redirected; every other file counts as UTF-8."""
NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
STAMPED: Final = r"^\d{4}[/-]\d{2}[/-]\d{2}[ T]\d{2}:\d{2}:\d{2}([.]\d{1,6})?$"
NOTHING: Final = pa.scalar(None, pa.string())


@frozen
class LogFile:
    """A CSV file: `titles` of its columns, their `names` without case and unit; its bytes.

    `cut`: the last line has no end, so that its last figure may be cut.
    """

    path: Path
    titles: tuple[str, ...]
    names: tuple[str, ...]
    content: bytes = field(repr=False)
    cut: bool

    def place(self, name: str) -> int:
        """Position of a column.  Raises SensorError if it is missing or occurs twice."""
        if (count := self.names.count(name)) != 1:
            said = f"{count} columns are named {name}; keep one" if count else f"no column {name!r}"
            raise SensorError(f"{self.path}: {said}; its columns: {shown_names(self.names)}")
        return self.names.index(name)


@frozen
class Columns:
    """The wanted columns by name, Arrow arrays of stripped texts; lines with another number of cells are `stray`, and left out."""

    cells: Mapping[str, Any]
    stray: Sequence[str]


def open_log(path: Path) -> LogFile:
    """Columns of a file.  Raises SensorError for one that cannot be read, is empty or has no header."""
    try:
        content = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise SensorError(f"{path}: cannot be read ({error.strerror})") from error
    if not content.strip():
        raise SensorError(f"{path}: is empty")
    if content.startswith(UTF_16):
        content = content.decode("utf-16", "replace").encode()
    first = content.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")[:LONGEST_HEADER].decode(errors="replace")
    header = next(iter(first.splitlines()), "")
    try:
        titles = tuple(title.strip() for title in next(csv.reader([header], skipinitialspace=True), []))
    except csv.Error as error:
        raise SensorError(f"{path}: its first line is no header ({error})") from error
    if len(header) == LONGEST_HEADER or "\x00" in header:
        raise SensorError(f"{path}: no CSV file: its first line is no header")
    cut = content.rstrip(b"\x00")[-1:] not in (b"\n", b"\r")
    return LogFile(path=path, titles=titles, names=tuple(map(bare_name, titles)), content=content, cut=cut)


def shown_names(names: Sequence[str]) -> str:
    """The first names of columns as part of a message."""
    return ", ".join(printable(name)[:LONGEST_SHOWN] for name in names[:MOST_NAMES]) or "none"


def read_columns(log: LogFile, wanted: Iterable[str], *, whole: bool = True) -> Columns:
    """The wanted columns.  With `whole` a possibly cut last line is left out.  Raises SensorError."""
    places = {name: str(log.place(name)) for name in wanted}
    stray: list[str] = []
    content = log.content
    if log.cut and whole:
        content = content[: max(content.rfind(b"\n"), content.rfind(b"\r")) + 1]

    def skipped(row: Any) -> str:
        stray.append(row.text.strip()[:LONGEST_SHOWN])
        return "skip"

    names, chosen = [str(index) for index in range(len(log.names))], [*places.values()]
    read = pa_csv.ReadOptions(use_threads=False, column_names=names, skip_rows=1, encoding="latin-1")  # damaged text must not stop a reader
    parse = pa_csv.ParseOptions(invalid_row_handler=skipped)
    convert = pa_csv.ConvertOptions(include_columns=chosen, column_types=dict.fromkeys(chosen, pa.string()), strings_can_be_null=False)
    try:
        table = pa_csv.read_csv(BytesIO(content), read_options=read, parse_options=parse, convert_options=convert)
    except (pa.ArrowException, UnicodeError) as error:
        if "Empty CSV" not in str(error):
            raise SensorError(f"{log.path}: cannot be read ({' '.join(str(error).split())[:200]})") from error
        return Columns(cells=dict.fromkeys(places, pa.array([], pa.string())), stray=stray)
    return Columns(cells={name: pc.utf8_trim_whitespace(table[place].combine_chunks()) for name, place in places.items()}, stray=stray)


def numbers(column: Any, unit: str = "") -> Array:
    """A column as numbers, shape (n,): texts with or without a trailing `unit`; nan for all else."""
    bare = pc.utf8_rtrim(column, f" {unit}")
    found = _filled(pc.if_else(pc.match_substring_regex(bare, NUMBER), bare, NOTHING).cast(pa.float64()))
    found[np.abs(found) > LARGEST] = np.nan
    return found


def stamps_s(column: Any) -> Array:
    """Stamps `2024/03/10 09:00:00.123` as seconds since 1970, as if they were universal time, shape (n,); nan for other cells."""
    text = pc.replace_substring(pc.if_else(pc.match_substring_regex(column, STAMPED), column, NOTHING), "/", "-")
    try:
        return _filled(pc.divide(text.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64()), US_PER_S))
    except pa.ArrowInvalid:  # an impossible day or hour
        return np.full(len(column), np.nan)


def _filled(column: Any) -> Array:
    """Figures as float64, nan for missing ones."""
    return np.array(pc.fill_null(column, float("nan")).to_numpy(zero_copy_only=False), dtype=np.float64)


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
    """Readings from a CSV log; `column` names the power, `board` the board (index, UUID or PCI address) of several.

    Raises SensorError, with the reason in one line, for a file that cannot be used.
    """
    log = open_log(path)
    time = TIME if TIME in log.names else STAMP
    if time == STAMP and (STAMP not in log.names or len(log.names) < 2):
        raise SensorError(
            f"{path}: needs the columns {TIME},{POWER}, or an nvidia-smi log with its header; found: {shown_names(log.names)}"
        )
    boards = [name for name in BOARD_COLUMNS if name in log.names]
    if board is not None and not boards:
        raise SensorError(f"{path}: names no boards, so that --gpu {board} cannot be chosen; log with --query-gpu=index,… or leave it out")
    powers = _power_columns(log, column, time)
    table = read_columns(log, (time, *powers, *boards, *({NAME} & {*log.names})))
    time_s = (stamps_s if time == STAMP else numbers)(table.cells[time])
    power_w = {name: watts(log, table, name) for name in powers}
    _check_figures(log, table, {time: [time_s], powers[0]: [*power_w.values()]})
    superchip = NAME in table.cells and any(SUPERCHIP in name for name in table.cells[NAME][:1].to_pylist())
    kept, chosen = slice(None), ""
    if boards:
        chosen, kept = _one_board([table.cells[name] for name in boards], board, log)
    filled = [name for name in powers if np.any(np.isfinite(power_w[name][kept]))]
    if not filled:
        raise SensorError(f"{path}: {' and '.join(powers)} hold no figure of this board")
    power = filled[-1] if superchip else filled[0]
    rows = ordered(time_s[kept], power_w[power][kept], str(path))
    remarks = ["the last line has no end and was left out: its last figure may be cut"] if log.cut else []
    if column is None and len(powers) > 1:
        remarks.append(f"column {power} of {', '.join(powers)}; --column names another")
    if superchip and power == POWER_COLUMNS[0]:
        remarks.append(f"{POWER_COLUMNS[0]} of a {SUPERCHIP} is the power of the whole module; power.draw.average is the GPU's")
    stray = (f"{len(table.stray)} line(s) are no row of the table and were left out, the first: {table.stray[0]!r}",) if table.stray else ()
    return RecordedReadings(
        time_s=rows.time_s,
        power_w=rows.power_w,
        column=power,
        board=chosen,
        local_time=time == STAMP,
        left_out=(*rows.remarks, *stray),
        remarks=tuple(remarks),
    )


def bare_name(name: str) -> str:
    """A column's name without its unit: `power.draw [W]` → `power.draw`."""
    return re.sub(r"\s*\[[^\]]*\]\s*$", "", name).strip().lower()


def _power_columns(log: LogFile, column: str | None, time: str) -> list[str]:
    """The power columns to try, best first: the named one, or all known ones.  Raises SensorError."""
    if column is not None or time == TIME:
        return [POWER if column is None else bare_name(column)]
    found = [name for name in (*POWER_COLUMNS, POWER) if name in log.names]
    if not found:
        raise SensorError(f"{log.path}: no power column; log with --query-gpu=timestamp,power.draw, or name one with --column")
    return found


def watts(log: LogFile, table: Columns, name: str) -> Array:
    """Power of a column [W], by the unit in its header.  Raises SensorError for a unit that is not one of power."""
    title = log.titles[log.place(name)]
    unit = next(iter(re.findall(r"\[([^\]]*)\]\s*$", title)), "").strip()
    if unit not in POWER_UNITS:
        raise SensorError(f"{log.path}: column {title!r} has the unit [{unit}], which is none of power; give it in W or mW")
    return numbers(table.cells[name], unit or "W") * POWER_UNITS[unit]


def _check_figures(log: LogFile, table: Columns, found: Mapping[str, Sequence[Array]]) -> None:
    """Raises SensorError for a log without rows, and for a column of times or powers without a readable cell: it shows the first."""
    expected = (f"seconds under {TIME}, or 2024/03/10 09:00:00.123 under {STAMP}", "figures of power")
    for (name, figures), read in zip(found.items(), expected, strict=False):
        if not len(cells := table.cells[name]):
            said = f"no line has the {len(log.names)} cells of the header; the first: {table.stray[0]!r}" if table.stray else "has no rows"
            raise SensorError(f"{log.path}: {said}")
        if not np.any(np.isfinite(figures)):
            first = cells[0].as_py()[:LONGEST_SHOWN]
            raise SensorError(f"{log.path}: no cell of {name} can be read, the first is {first!r}; read are {read}")


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
