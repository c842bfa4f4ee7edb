"""Selection: data sets in, accepted rows and the reasons for all others out."""

from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from collector.dataset import is_kernel_dataset
from estimator.gpu import GpuSpec
from estimator.quantities import Array, BoolArray, IntArray
from fitter.errors import InputError, SelectionError
from fitter.rows import block_table, kernel_table, workload_dataset
from fitter.rows.block_rows import BlockRows, join_block_rows
from fitter.rows.block_table import is_block_sweep, is_block_table, read_block_sweep, read_block_table
from fitter.rows.columns import Dataset, KernelRows, Rows, Selection, Startup, WorkloadRows, join_rows
from fitter.rows.instruction_dataset import is_instruction, read_instruction_rows
from fitter.rows.instruction_rows import join_instruction_rows
from fitter.rows.kernel_dataset import read_collected
from fitter.rows.kernel_table import is_kernel_table, read_kernel_table
from fitter.rows.rejected import OTHER_GPU, RejectedRow, count_reasons, count_whole
from fitter.rows.screening import AT_LIMIT_SHARE, asked_gpu
from fitter.rows.tables import PARQUET_MAGIC, file_digest, open_table, read_head, read_header
from fitter.rows.workload_dataset import is_workload_dataset, read_workload_dataset

MOST_NAMES: Final = 5
"""Names that a note lists."""


def read_selection(paths: Sequence[str | Path], gpu: str | None = None) -> Selection:
    """All rows of data sets of any kind, screened.

    gpu: keep the rows of this GPU only (the others are rejected as OTHER_GPU), and the GPU of tables that have no such
    column; by name or file.  Raises InputError for a file that cannot be used, SpecificationError for an unknown `gpu`,
    SelectionError where no row is left, DatasetError for a damaged kernel dataset.
    """
    if not paths:
        raise InputError("no data set given; name at least one file or folder")
    asked = asked_gpu(gpu)
    name = None if asked is None else asked.name
    parts: list[Selection] = []
    seen: dict[str, str] = {}
    for path in paths:
        try:
            part = _of_gpu(_read_one(_named(Path(path)), asked), name)
        except UnicodeEncodeError as error:
            raise InputError(f"{str(path)[:200]!r}: its name is not UTF-8 text; rename it") from error
        except (OSError, ValueError) as error:  # a name that no file can have, a folder that may not be entered
            raise InputError(f"{str(path)[:200]!r}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
        digest = part.datasets[0].sha256
        if digest in seen:
            raise InputError(f"{path}: the same data as {seen[digest]}; give every data set once")
        seen[digest] = str(path)
        parts.append(part)
    selection = joined(parts)
    if all(part is None for part in (selection.kernels, selection.workloads, selection.instructions, selection.blocks)):
        raise SelectionError(_nothing_left(selection, name))
    return selection


def require_one_gpu(selection: Selection) -> str:
    """The GPU of all rows.  Raises SelectionError, listing them with their rows, where there are several."""
    names = selection.gpus
    if len(names) == 1:
        return names[0]
    counts = {name: _rows_of(selection, name) for name in names}
    listed = ", ".join(f"{name} ({count} rows)" for name, count in counts.items())
    raise SelectionError(f"rows of {len(names)} GPUs: {listed}; a bundle describes one, choose it with --gpu NAME")


def require_one_world(selection: Selection) -> None:
    """Raises SelectionError where measurements of a GPU and of a simulated board would become one bundle."""
    simulated = [dataset.name for dataset in selection.datasets if dataset.used and dataset.metadata.get("simulated") is True]
    measured = [dataset.name for dataset in selection.datasets if dataset.used and dataset.metadata.get("simulated") is not True]
    if simulated and measured:
        raise SelectionError(
            f"{simulated[0]} comes from a simulated board and {measured[0]} does not: a bundle tells of one of them; fit them apart"
        )


def _named(path: Path) -> Path:
    """A path whose last part is a name: "." and ".." have none to tell a data set by.  Raises InputError for the root of all files."""
    named = path if path.name not in ("", "..") else path.resolve()
    if not named.name:
        raise InputError(f"{path}: the root of all files; name a data set or a folder of them")
    return named


def _read_one(path: Path, gpu: GpuSpec | None) -> Selection:
    """One data set of whatever kind its content shows."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path}: neither a file nor a folder")
    if not path.is_file() or is_kernel_dataset(path):
        return _collected(path, gpu)
    _refuse_json(path)
    header = read_header(path)
    if is_workload_dataset(header):
        table = open_table(path, workload_dataset.COLUMNS)
        reading = read_workload_dataset(table, gpu)
        return _selection(path, table.sha256, "workload dataset", len(table), None, reading.rows, reading.rejected, reading.startups)
    if is_block_table(header):
        table = open_table(path, block_table.COLUMNS)
        blocks, rejected = read_block_table(table, gpu)
        return _with_blocks(_selection(path, table.sha256, "block table", len(table), None, None, rejected), blocks)
    if is_kernel_table(header):
        table = open_table(path, kernel_table.COLUMNS)
        rows, rejected = read_kernel_table(table, gpu)
        selection = _selection(path, table.sha256, "kernel table", len(table), rows, None, rejected)
        if not kernel_table.from_simulated_board(table):
            return selection
        return replace(selection, datasets=(replace(selection.datasets[0], metadata={"simulated": True}),))
    found = ", ".join(header[:8]) + (", …" if len(header) > 8 else "")
    kind = "Parquet file" if read_head(path).startswith(PARQUET_MAGIC) else "table"
    raise InputError(
        f"{path}: a {kind} with columns {found}: neither a kernel dataset of `collect`, nor a workload dataset "
        f"({', '.join(workload_dataset.NEEDED)}, …), nor a kernel table ({', '.join(kernel_table.NEEDED)}, …), "
        f"nor a block table ({', '.join(block_table.NEEDED)}, …)"
    )


JSON_START: Final = (b"{", b"[")
"""What a JSON document of objects begins with, and no header of a table."""


def _refuse_json(path: Path) -> None:
    """Raises InputError for a JSON file, most likely one that a table should name."""
    if read_head(path).removeprefix(BOM_UTF8).lstrip().startswith(JSON_START):
        raise InputError(
            f"{path}: a JSON file, perhaps a workload file or a bundle; `fit` reads tables of measurements (CSV or Parquet): "
            "name a workload file in the column 'workload' of one, `estimate` takes it by itself"
        )


def _collected(path: Path, gpu: GpuSpec | None) -> Selection:
    dataset, rows, rejected = read_collected(path, gpu)
    swept = is_block_sweep(dataset.table)
    instructions, refused = read_instruction_rows(dataset.table, path.name, is_instruction(dataset.table) & ~swept, gpu)
    blocks, unfit = read_block_sweep(dataset.table, path.name, swept, gpu)
    rejected = [*rejected, *refused, *unfit]
    selection = _selection(path, file_digest(path), "kernel dataset", dataset.table.num_rows, rows, None, rejected)
    selection = _with_blocks(selection, blocks)
    if instructions is not None:
        record = replace(selection.datasets[0], used=selection.datasets[0].used + len(instructions))
        selection = replace(selection, instructions=instructions, datasets=(record,))
    notes = [*selection.notes]
    if dataset.metadata.get("complete") is False:
        notes.append(f"{path.name}: the campaign did not finish; `collect --resume` goes on with it")
    record = replace(selection.datasets[0], metadata=dataset.metadata)
    return replace(selection, datasets=(record,), notes=tuple(notes))


def _with_blocks(selection: Selection, blocks: BlockRows | None) -> Selection:
    """The selection of one data set with the grids that it holds as well."""
    if blocks is None:
        return selection
    record = replace(selection.datasets[0], used=selection.datasets[0].used + len(blocks))
    return replace(selection, blocks=blocks, datasets=(record,))


def _selection(
    path: Path,
    digest: str,
    kind: str,
    count: int,
    kernels: KernelRows | None,
    workloads: WorkloadRows | None,
    rejected: list[RejectedRow],
    startups: tuple[Startup, ...] = (),
) -> Selection:
    used = (0 if kernels is None else len(kernels)) + (0 if workloads is None else len(workloads))
    record = Dataset(name=path.name, sha256=digest, kind=kind, rows=count, used=used, rejected=count_whole(rejected), metadata={})
    notes = _notes(kernels, workloads, path.name)
    return Selection(kernels=kernels, workloads=workloads, rejected=tuple(rejected), startups=startups, datasets=(record,), notes=notes)


def _notes(kernels: KernelRows | None, workloads: WorkloadRows | None, source: str) -> tuple[str, ...]:
    """Remarks on a data set that concern no single row."""
    notes = []
    if kernels is not None and not np.isfinite(kernels.sm_clock_mhz).any() and not np.isfinite(kernels.sm_clock_asked_mhz).any():
        notes.append(f"{source}: no clocks recorded; the clock for which the vendor quotes peak rates is assumed")
    if kernels is not None and np.any(kernels.at_limit):
        notes.append(
            f"{source}: {int(kernels.at_limit.sum())} rows lie within {1.0 - AT_LIMIT_SHARE:.0%} of the power limit, throttled or "
            "nearly so: their power says only that the kernel would draw at least as much"
        )
    if workloads is not None and np.any(workloads.perturbed):
        changed = int(workloads.perturbed.sum())
        runs = "1 run changed its pace; it counts" if changed == 1 else f"{changed} runs changed their pace; they count"
        notes.append(f"{source}: {runs} less in the fit")
    if workloads is not None and not np.any(workloads.startup_s > 0):
        notes.append(f"{source}: the runs aim at no common duration; start-up stays in them")
    partly = [workload for workload in workloads.workloads if workload.unknown] if workloads is not None else []
    if partly:
        names = sorted({entry.name for workload in partly for entry in workload.unknown})
        notes.append(f"{source}: {len(partly)} workloads hold operators that cannot be modelled: {', '.join(names[:MOST_NAMES])}")
    return tuple(notes)


def _of_gpu(selection: Selection, name: str | None) -> Selection:
    """The rows of one GPU; all where `name` is None."""
    if name is None:
        return selection
    rejected = list(selection.rejected)
    kept: list[KernelRows | WorkloadRows | None] = []
    for rows in (selection.kernels, selection.workloads):
        own = np.array([] if rows is None else [rows.gpus[i] == name for i in rows.gpu_index], dtype=np.bool_)
        if rows is not None:
            for i in np.flatnonzero(~own).tolist():
                source, other = rows.sources[rows.source_index[i]], rows.gpus[rows.gpu_index[i]]
                rejected.append(RejectedRow(source=source, row=int(rows.row[i]), reason=OTHER_GPU, detail=other))
        kept.append(rows.select(own) if rows is not None and own.any() else None)
    instructions = None
    if selection.instructions is not None:
        mine = np.array([row.gpu == name for row in selection.instructions.rows], dtype=np.bool_)
        for row in selection.instructions.select(~mine).rows:
            rejected.append(RejectedRow(source=row.source, row=row.row, reason=OTHER_GPU, detail=row.gpu))
        instructions = selection.instructions.select(mine) if mine.any() else None
    blocks = None
    if selection.blocks is not None:
        mine = selection.blocks.gpu == name
        others = selection.blocks.select(~mine)
        for source, number, other in zip(others.source, others.row, others.gpu, strict=True):
            rejected.append(RejectedRow(source=source, row=int(number), reason=OTHER_GPU, detail=other))
        blocks = selection.blocks.select(mine) if mine.any() else None
    used = sum(len(rows) for rows in (*kept, instructions, blocks) if rows is not None)
    return replace(
        selection,
        instructions=instructions,
        blocks=blocks,
        kernels=kept[0] if isinstance(kept[0], KernelRows) else None,
        workloads=kept[1] if isinstance(kept[1], WorkloadRows) else None,
        rejected=tuple(rejected),
        datasets=(replace(selection.datasets[0], used=used, rejected=count_whole(rejected)),),
    )


def joined(parts: list[Selection]) -> Selection:
    """Selections of one data set each as one."""
    return Selection(
        kernels=join_rows([part.kernels for part in parts if part.kernels is not None]),
        workloads=join_rows([part.workloads for part in parts if part.workloads is not None]),
        instructions=join_instruction_rows([part.instructions for part in parts if part.instructions is not None]),
        blocks=join_block_rows([part.blocks for part in parts if part.blocks is not None]),
        rejected=tuple(row for part in parts for row in part.rejected),
        startups=tuple(startup for part in parts for startup in part.startups),
        datasets=tuple(dataset for part in parts for dataset in part.datasets),
        notes=(*(note for part in parts for note in part.notes), *_meter_notes(parts)),
    )


def _meter_notes(parts: list[Selection]) -> tuple[str, ...]:
    """A remark where the power of some data sets was compared with a meter and that of others was not."""
    known: dict[bool, list[str]] = {True: [], False: []}
    for part in parts:
        if _has_power(part):
            known[part.datasets[0].gain_std is not None].append(part.datasets[0].name)
    if not known[True] or not known[False]:
        return ()
    without, metered = (", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "") for names in (known[False], known[True]))
    return (
        f"power of {metered} was compared with an external meter, power of {without} was not: "
        "the gain of their sensors differs by an unknown few per cent, and the fit takes both alike",
    )


def _has_power(part: Selection) -> bool:
    kernels, workloads = part.kernels, part.workloads
    return part.instructions is not None or bool(
        (kernels is not None and np.isfinite(kernels.power_w).any()) or (workloads is not None and np.isfinite(workloads.energy_j).any())
    )


def _rows_of(selection: Selection, name: str) -> int:
    count = 0
    for rows in (selection.kernels, selection.workloads):
        if rows is not None:
            count += sum(1 for i in rows.gpu_index if rows.gpus[i] == name)
    if selection.instructions is not None:
        count += sum(row.gpu == name for row in selection.instructions.rows)
    return count


def _nothing_left(selection: Selection, name: str | None) -> str:
    """Why no row is left, with the first of each of the most frequent reasons."""
    if not selection.row_count:
        return f"{', '.join(dataset.name for dataset in selection.datasets)}: no rows; name a table that has some"
    counts = count_reasons(selection.rejected)
    example = next((row for row in selection.rejected if row.reason == next(iter(counts), "")), None)
    listed = ", ".join(f"{count} {reason}" for reason, count in list(counts.items())[:4])
    wanted = f" for {name}" if name else ""
    where = f"; first: {example.source} row {example.row}, {example.detail}" if example else ""
    return f"no usable row{wanted} among {selection.row_count} ({listed}){where}"


NOT_TOLD: Final = frozenset({"sources", "source_index", "row", "gpus", "gpu_index"})
"""Columns that say where a row was written, and those of GPUs' numbers: their names count."""


def in_own_order(selection: Selection) -> Selection:
    """The selection with kernels and runs ordered by what they say; two that say the same stay as they are.

    Folds, samples and sums of floating-point numbers follow the order of rows: one table written in two orders gives one bundle.
    """
    kernels, workloads = selection.kernels, selection.workloads
    return replace(
        selection,
        kernels=None if kernels is None else _ordered(kernels, "operators", "operator_index"),
        workloads=None if workloads is None else _ordered(workloads, "workloads", "workload_index"),
    )


def _ordered(rows: Rows, unique: str, index: str) -> Rows:
    """Rows by their operator or workload, then by their other columns; what no row uses falls out of the unique ones."""
    values, number = getattr(rows, unique), getattr(rows, index)
    used = sorted(np.unique(number).tolist(), key=lambda place: repr(values[place]))
    rank = np.full(len(values), -1, dtype=np.int64)
    rank[used] = np.arange(len(used))
    changes: dict[str, Any] = {unique: tuple(values[place] for place in used), index: rank[number]}
    columns: list[IntArray] = [
        _ranks(getattr(rows, column.name)) for column in fields(rows) if column.name not in NOT_TOLD | {unique, index}
    ]
    gpu = _ranks(tuple(rows.gpus[place] for place in rows.gpu_index))
    return replace(rows, **changes).select(np.lexsort((*columns, gpu, rank[number])))


def _ranks(column: Array | IntArray | BoolArray | tuple[Any, ...]) -> IntArray:
    """The rank of each value of a column among its different ones, shape (n,); what is not a number comes last."""
    if isinstance(column, tuple):
        rank = {value: place for place, value in enumerate(sorted(set(column)))}
        return np.fromiter(map(rank.__getitem__, column), np.int64, len(column))
    ranks: IntArray = np.unique(column, return_inverse=True)[1]
    return ranks
