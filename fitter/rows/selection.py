"""Selection: reads data sets and returns accepted rows and rejected rows with reasons."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pandas as pd

from collector.dataset.reader import is_kernel_dataset, left_out, read_kernel_dataset
from estimator.bundle.content import Bundle
from estimator.vocabulary.gpu import GpuSpec, is_simulated_uuid
from fitter.errors import InputError, SelectionError
from fitter.rows import block_table, kernel_table, workload_dataset
from fitter.rows.block_table import SWEEP, read_block_table
from fitter.rows.columns import UNIQUE_COLUMNS, Dataset, Files, KernelRows, Selection, WorkloadRows, files_of, join_rows
from fitter.rows.instruction_dataset import FAMILY, read_instruction_rows
from fitter.rows.kernel_table import AT_LIMIT_SHARE, read_kernel_table
from fitter.rows.partitions import parquet_files
from fitter.rows.rejected import count_reasons
from fitter.rows.screening import asked_gpu, first_known
from fitter.rows.tables import Table, file_digest, open_table, read_header
from fitter.rows.workload_dataset import read_workload_dataset

Rows = TypeVar("Rows", KernelRows, WorkloadRows)


def read_selection(paths: Sequence[str | Path], gpu: str | GpuSpec | None = None) -> Selection:
    """Read and screen data sets of any kind.

    gpu: the GPU to keep, or its name or file (other rows are rejected as OTHER_GPU), also the GPU of tables without such a
    column.  Raises InputError for an unusable file, SpecificationError for an unknown `gpu`,
    SelectionError if no row is left, DatasetError for a damaged kernel dataset.
    """
    asked = asked_gpu(gpu)
    parts, notes = [], []
    for path in paths:
        try:
            path = Path(path)
            files = _files(path)
            own = [one for one in files if one == path or _table_kind(one) is not None]
            notes += [f"{one.name}: no table of kernels, runs or blocks; left out" for one in files if own and one not in own]
            parts += [_read_one(one, asked) for one in own or files]
        except (OSError, ValueError) as error:  # an invalid file name, a folder without permission
            raise InputError(f"{str(path)[:200]!r}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    # One bundle for any order of the files.
    selection = joined(sorted(parts, key=lambda part: (part.datasets[0].name, part.datasets[0].sha256)))
    selection = replace(selection, notes=(*selection.notes, *notes))
    if not selection.parts:
        raise SelectionError(_nothing_left(selection, None if asked is None else asked.name))
    return selection


def require_one_gpu(selection: Selection) -> str:
    """The GPU of all rows.  Raises SelectionError with a list of GPUs and row counts if there are several."""
    counts = selection.rows_by_gpu
    if len(counts) > 1:
        listed = ", ".join(f"{name} ({count} rows)" for name, count in counts.items())
        raise SelectionError(f"rows of {len(counts)} GPUs: {listed}; a bundle describes one, choose it with --gpu NAME")
    return next(iter(counts))


def require_one_world(selection: Selection, sources: Iterable[Bundle] = (), judged: Bundle | None = None) -> None:
    """Raise SelectionError for a mix of real and simulated boards: of the rows, with bundles that they start from, with one they judge."""
    simulated = {file.get("simulated") is True: one.name for one in reversed(selection.datasets) if one.used for file in one.files}
    if len(simulated) > 1:
        raise SelectionError(
            f"{simulated[True]} comes from a simulated board and {simulated[False]} does not: a bundle tells of one of them; fit them apart"
        )
    for source in sources:
        if source.simulated and True not in simulated:
            raise SelectionError(
                f"bundle {source.name} was fitted on a simulated board and these rows were not: its numbers say nothing about a GPU"
            )
    if judged is not None and simulated and judged.simulated not in simulated:
        raise SelectionError(f"one of bundle {judged.name} and these rows comes from a simulated board: neither says anything of the other")


def _files(path: Path) -> list[Path]:
    """The tables in a folder, and the folder itself where it holds a dataset of `collect`; the path itself of a file, or without any."""
    packed = parquet_files(path)
    own = [path] if any(map(is_kernel_dataset, packed)) else packed
    return sorted([*path.glob("*.csv"), *path.glob("*.csv.gz"), *own]) or [path]


def _read_one(path: Path, gpu: GpuSpec | None) -> Selection:
    """Read one data set; its content determines its kind."""
    path = path.resolve() if path.name in ("", "..") else path
    if path.is_dir() or is_kernel_dataset(path):
        dataset = read_kernel_dataset(path)
        rows = _collected(Table.of(dataset.table, path, file_digest(path)), dataset.files, gpu)
        return replace(rows, notes=(*rows.notes, *filter(None, [left_out(path)])))
    known = _table_kind(path)
    if known is not None:
        kind, module, read = known
        table, header = open_table(path, module.COLUMNS), read_header(path)
        # power_mw in place of power_w would cost the power in silence
        words = {word for name in module.COLUMNS - {*header} for word in name.split("_")}
        unread = [name for name in header if name not in module.COLUMNS and words & {*name.lower().split("_")}]
        # The only mark of a simulation in a dataset of `collect` in another format.
        simulated = any(map(is_simulated_uuid, set(table.texts("gpu_uuid"))))
        rows = _selection(table, kind, read(table, gpu), ({"simulated": simulated},))
        told = (f"{table.name}: column {name!r} is not read; {GUIDE} lists those that are" for name in unread)
        return replace(rows, notes=(*rows.notes, *told))
    header = read_header(path)
    if header and header[0].lstrip().startswith(("{", "[")):
        raise InputError(f"{path}: JSON, no table of measurements; a workload file is for `estimate`")
    if len(header) == 1 and {";", "\t"} & {*header[0]}:
        raise InputError(f"{path}: its columns are not separated by commas; save it so, with points in numbers")
    found = ", ".join(header[:8]) + (", …" if len(header) > 8 else "")
    listed = ", nor a ".join(f"{kind} ({', '.join(module.NEEDED)}, …)" for kind, module, _ in KINDS)
    raise InputError(f"{path}: a table with columns {found}: neither a kernel dataset of `collect`, nor a {listed}")


GUIDE: Final = "docs/how-to/fit-your-measurements.md"

KINDS: Final = (
    ("workload dataset", workload_dataset, read_workload_dataset),
    ("block table", block_table, read_block_table),
    ("kernel table", kernel_table, read_kernel_table),
)
"""Kinds of tables that users write: the module with their needed and other columns, and their reader."""


def _table_kind(path: Path) -> tuple[str, Any, Callable[[Table, GpuSpec | None], Selection]] | None:
    """The entry of KINDS for a table by its header; None if it is of no known kind."""
    header = set(read_header(path))
    return next((kind for kind in KINDS if set(kind[1].NEEDED) <= header), None)


def _collected(table: Table, files: Files, gpu: GpuSpec | None) -> Selection:
    """A kernel dataset: kernels of libraries, generated ones, and sweeps over blocks."""
    swept = table.marked(SWEEP, "launch_mode")
    generated = table.marked(FAMILY, "family") & ~swept
    kinds = ((read_kernel_table, ~generated & ~swept), (read_instruction_rows, generated), (read_block_table, swept))
    rows = _merged([read(table.select(own), gpu) for read, own in kinds if own.any()])
    return _selection(table, "kernel dataset", rows, files_of(gpu, files))


def _selection(table: Table, kind: str, rows: Selection, files: Files) -> Selection:
    """The rows of one data set with its record and with notes on the whole data set."""
    rejected = count_reasons(rows.rejected, power_only=False)
    used = len(table) - sum(rejected.values())
    record = Dataset(name=table.name, sha256=table.sha256, kind=kind, rows=len(table), used=used, rejected=rejected, files=files)
    notes, kernels, runs = [], rows.kernels, rows.workloads
    if kernels is not None:
        if not (np.isfinite(kernels.sm_clock_mhz) | np.isfinite(kernels.sm_clock_asked_mhz)).any():
            notes.append("no clocks recorded; boards left free run at their highest clock, or where the power limit holds them")
        if kernels.bounded.any():
            notes.append(
                f"{int(kernels.bounded.sum())} rows lie within {1.0 - AT_LIMIT_SHARE:.0%} of the power limit, throttled or nearly so: "
                "their power says only that the kernel would draw at least as much; without a measured clock their time is fitted only "
                "where their kind has no others"
            )
    if runs is not None:
        if not rows.startups:
            notes.append("the runs aim at no common duration; start-up stays in them")
        unknown = [{entry.name for entry in workload.unknown} for workload in runs.workloads if workload.unknown]
        if unknown:
            notes.append(f"{len(unknown)} workloads hold operators that cannot be modelled: {', '.join(sorted(set.union(*unknown))[:5])}")
    if any(file.get("complete") is False for file in files):
        notes.append("the campaign did not finish; `collect --resume` goes on with it")
    return replace(
        rows,
        kernels=kernels and kernels.in_collection(table.name),
        workloads=runs and runs.in_collection(table.name),
        datasets=(record,),
        notes=tuple(f"{table.name}: {note}" for note in notes),
    )


def joined(parts: list[Selection]) -> Selection:
    """Join selections of single data sets.

    Raises InputError if two are the same file, or share most of their times, as a dataset with an export or an earlier state of it.
    """
    seen: list[tuple[Dataset, list[set[object]]]] = []
    for part in parts:
        record, own = part.datasets[0], [_row_marks(rows) for rows in part.tables if len(parts) > 1]
        for earlier, theirs in seen:
            pairs = [(mine & other, min(len(mine), len(other))) for mine, other in product(own, theirs)]
            if record.sha256 == earlier.sha256 or any(2 * len(shared) > max(most, 2) for shared, most in pairs):
                raise InputError(f"{record.name}: the same data as {earlier.name}, or most of them; give every row once")
        seen.append((record, own))
    return _merged(parts)


def _row_marks(rows: KernelRows | WorkloadRows) -> set[object]:
    """What ran and its time, for each row."""
    what = rows.row_operators() if isinstance(rows, KernelRows) else [workload.name for workload in rows.row_workloads()]
    return set(zip(what, rows.latency_s.tolist(), strict=True))


def _merged(parts: Sequence[Selection]) -> Selection:
    lists = ("rejected", "startups", "datasets", "notes")
    own = {column.name: [getattr(part, column.name) for part in parts] for column in fields(Selection)}
    whole = {name: sum(values, ()) if name in lists else join_rows(values) for name, values in own.items()}
    return Selection(**whole)  # type: ignore[arg-type]


def _nothing_left(selection: Selection, name: str | None) -> str:
    """Message for a selection without rows, with an example of the most frequent reason."""
    if not selection.row_count:
        return f"{', '.join(dataset.name for dataset in selection.datasets)}: no rows; name a table that has some"
    counts = count_reasons(selection.rejected)
    example = next(row for row in selection.rejected if row.reason == next(iter(counts)))
    listed = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    where = f"first: {example.source} row {example.row}, {example.detail}"
    return f"no usable row{f' for {name}' if name else ''} among {selection.row_count} ({listed}); {where}"


UNORDERED: Final = frozenset({*UNIQUE_COLUMNS, *UNIQUE_COLUMNS.values(), "row"})
"""Columns that do not order rows of a kernel or run: the place of a row, and unique values with their indices."""


def in_own_order(selection: Selection) -> Selection:
    """The selection with kernels, without repetitions, and runs, sorted by content; equal rows keep their order.

    Folds, samples and floating-point sums depend on the order of rows; sorting gives one bundle for any order of a table.
    """
    kernels, runs = selection.kernels, selection.workloads
    return replace(selection, kernels=kernels and _sorted(_medians(kernels), "operators"), workloads=runs and _sorted(runs, "workloads"))


MEASURED: Final = ("sm_clock_mhz", "latency_s", "power_w", "power_std_w", "temperature_c")
"""Columns in which repetitions of a measurement differ."""


def _medians(rows: KernelRows) -> KernelRows:
    """The rows with one for all repetitions of a measurement, the medians; trials of `collect` share a weight instead.

    A repetition off by more than a factor of 2 stays, for the fit to name.  Each would count as a kernel: with 20 repetitions of 24
    kernels (simulated) a fit errs half as much again, and intervals of power hold 67 to 82 % instead of 94.
    """
    place = np.arange(len(rows))
    apart = np.where(rows.weight == 1.0, -1, place)
    stated = [column.name for column in fields(rows) if column.name not in {*UNIQUE_COLUMNS, *MEASURED, "row", "source_index"}]
    columns = {name: getattr(rows, name) for name in stated}
    every = pd.DataFrame(columns | {"apart": apart, "clock_mhz": first_known(rows.sm_clock_asked_mhz, rows.sm_clock_mhz)})
    number = every.groupby(list(every), dropna=False, sort=False).ngroup().to_numpy()
    usual_s = pd.Series(rows.latency_s).groupby(number).transform("median").to_numpy()
    number = np.where(np.abs(np.log2(rows.latency_s / usual_s)) > 1.0, len(rows) + place, number)
    medians = pd.DataFrame({name: getattr(rows, name) for name in MEASURED}).groupby(number).median()
    first = rows.select(np.unique(number, return_index=True)[1])
    return replace(first, **{name: medians[name].to_numpy() for name in MEASURED})  # type: ignore[arg-type]


def _sorted(rows: Rows, unique: str) -> Rows:
    """The rows by kernel or run (the used ones of the field `unique`, sorted by content), then by other columns, then GPU."""
    values, number = getattr(rows, unique), getattr(rows, UNIQUE_COLUMNS[unique])
    used = sorted(np.unique(number).tolist(), key=lambda place: repr(values[place]))
    rank = np.full(len(values), -1, dtype=np.int64)
    rank[used] = np.arange(len(used))
    columns: list[Any] = [getattr(rows, column.name) for column in fields(rows) if column.name not in UNORDERED]
    keys: list[Any] = [np.unique(np.asarray(column), return_inverse=True)[1].reshape(-1) for column in [*columns, rows.row_gpus]]
    ranked = replace(rows, **{unique: tuple(values[place] for place in used), UNIQUE_COLUMNS[unique]: rank[number]})
    return ranked.select(np.lexsort((*keys, rank[number])))
