"""Selection: reads data sets and returns accepted rows and rejected rows with reasons."""

from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from collector.dataset import is_kernel_dataset, read_kernel_dataset
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import IntArray
from fitter.errors import InputError, SelectionError
from fitter.rows import block_table, kernel_table, workload_dataset
from fitter.rows.block_table import is_block_sweep, is_block_table, join_block_rows, read_block_table
from fitter.rows.columns import Dataset, Rows, Selection, join_rows
from fitter.rows.instruction_dataset import is_instruction, join_instruction_rows, read_instruction_rows
from fitter.rows.kernel_table import AT_LIMIT_SHARE, is_kernel_table, read_kernel_table
from fitter.rows.rejected import count_reasons
from fitter.rows.screening import asked_gpu
from fitter.rows.tables import Table, file_digest, open_table, read_head, read_header
from fitter.rows.workload_dataset import is_workload_dataset, read_workload_dataset

MOST_NAMES: Final = 5
"""Most names in a note."""


def read_selection(paths: Sequence[str | Path], gpu: str | None = None) -> Selection:
    """Read and screen data sets of any kind.

    gpu: name or file of the GPU to keep (other rows are rejected as OTHER_GPU), also the GPU of tables without such a
    column.  Raises InputError for an unusable file, SpecificationError for an unknown `gpu`,
    SelectionError if no row is left, DatasetError for a damaged kernel dataset.
    """
    if not paths:
        raise InputError("no data set given; name at least one file or folder")
    asked = asked_gpu(gpu)
    parts = []
    for path in paths:
        try:
            parts.append(_read_one(_named(Path(path)), asked))
        except (OSError, ValueError) as error:  # an invalid file name, a folder without permission
            raise InputError(f"{str(path)[:200]!r}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    selection = joined(parts)
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


def require_one_world(selection: Selection) -> None:
    """Raise SelectionError if the selection mixes measurements of a real and of a simulated board."""
    simulated = {dataset.metadata.get("simulated") is True: dataset.name for dataset in reversed(selection.datasets) if dataset.used}
    if len(simulated) > 1:
        raise SelectionError(
            f"{simulated[True]} comes from a simulated board and {simulated[False]} does not: a bundle tells of one of them; fit them apart"
        )


def _named(path: Path) -> Path:
    """A path whose last part is a name; "." and ".." are resolved.  Raises InputError for the root folder."""
    named = path if path.name not in ("", "..") else path.resolve()
    if not named.name:
        raise InputError(f"{path}: the root of all files; name a data set or a folder of them")
    return named


def _read_one(path: Path, gpu: GpuSpec | None) -> Selection:
    """Read one data set; its content determines its kind."""
    if not path.is_file() and not path.is_dir():
        raise InputError(f"{path}: {'neither a file nor a folder' if path.exists() else 'no such file or folder'}")
    if path.is_dir() or is_kernel_dataset(path):
        dataset = read_kernel_dataset(path)
        return _collected(Table.of(dataset.table, path, file_digest(path)), dataset.metadata, gpu)
    if read_head(path).removeprefix(BOM_UTF8).lstrip().startswith((b"{", b"[")):
        raise InputError(f"{path}: a JSON file; `fit` reads tables of measurements (CSV or Parquet), which name workload files in a column")
    header = read_header(path)
    if is_workload_dataset(header):
        table = open_table(path, workload_dataset.COLUMNS)
        rows, rejected, startups = read_workload_dataset(table, gpu)
        return _selection(table, "workload dataset", Selection(workloads=rows, rejected=tuple(rejected), startups=startups))
    if is_block_table(header):
        table = open_table(path, block_table.COLUMNS)
        blocks, rejected = read_block_table(table, gpu)
        return _selection(table, "block table", Selection(blocks=blocks, rejected=tuple(rejected)))
    if is_kernel_table(header):
        table = open_table(path, kernel_table.COLUMNS)
        kernels, rejected = read_kernel_table(table, gpu)
        metadata = {"simulated": True} if kernel_table.from_simulated_board(table) else {}
        return _selection(table, "kernel table", Selection(kernels=kernels, rejected=tuple(rejected)), metadata)
    found = ", ".join(header[:8]) + (", …" if len(header) > 8 else "")
    kinds = (("workload dataset", workload_dataset.NEEDED), ("kernel table", kernel_table.NEEDED), ("block table", block_table.NEEDED))
    listed = ", nor a ".join(f"{kind} ({', '.join(needed)}, …)" for kind, needed in kinds)
    raise InputError(f"{path}: a table with columns {found}: neither a kernel dataset of `collect`, nor a {listed}")


def _collected(table: Table, metadata: Mapping[str, object], gpu: GpuSpec | None) -> Selection:
    """A kernel dataset: kernels of libraries, generated ones, and sweeps over blocks."""
    swept = is_block_sweep(table)
    generated = is_instruction(table) & ~swept
    kernels, rejected = read_kernel_table(table.select(~generated & ~swept), gpu)
    instructions, refused = read_instruction_rows(table.select(generated), gpu) if generated.any() else (None, [])
    blocks, unfit = read_block_table(table.select(swept), gpu) if swept.any() else (None, [])
    rows = Selection(kernels=kernels, instructions=instructions, blocks=blocks, rejected=(*rejected, *refused, *unfit))
    selection = _selection(table, "kernel dataset", rows, metadata)
    if metadata.get("complete") is False:
        unfinished = f"{table.name}: the campaign did not finish; `collect --resume` goes on with it"
        return replace(selection, notes=(*selection.notes, unfinished))
    return selection


def _selection(table: Table, kind: str, rows: Selection, metadata: Mapping[str, object] | None = None) -> Selection:
    """The rows of one data set with its record and with notes on the whole data set."""
    rejected = count_reasons(rows.rejected, power_only=False)
    used = len(table) - sum(rejected.values())
    record = Dataset(
        name=table.name, sha256=table.sha256, kind=kind, rows=len(table), used=used, rejected=rejected, metadata=metadata or {}
    )
    notes, kernels, runs = [], rows.kernels, rows.workloads
    if kernels is not None and not (np.isfinite(kernels.sm_clock_mhz) | np.isfinite(kernels.sm_clock_asked_mhz)).any():
        notes.append("no clocks recorded; the clock for which the vendor quotes peak rates is assumed")
    if kernels is not None and kernels.at_limit.any():
        notes.append(
            f"{int(kernels.at_limit.sum())} rows lie within {1.0 - AT_LIMIT_SHARE:.0%} of the power limit, throttled or nearly so: "
            "their power says only that the kernel would draw at least as much"
        )
    if runs is not None and runs.perturbed.any():
        notes.append(f"{int(runs.perturbed.sum())} runs changed their pace; they count less in the fit")
    if runs is not None and not (runs.startup_s > 0).any():
        notes.append("the runs aim at no common duration; start-up stays in them")
    partly = [workload for workload in runs.workloads if workload.unknown] if runs is not None else []
    if partly:
        names = sorted({entry.name for workload in partly for entry in workload.unknown})
        notes.append(f"{len(partly)} workloads hold operators that cannot be modelled: {', '.join(names[:MOST_NAMES])}")
    return replace(rows, datasets=(record,), notes=tuple(f"{table.name}: {note}" for note in notes))


def joined(parts: list[Selection]) -> Selection:
    """Join selections of single data sets.  Raises InputError if two hold the same data."""
    seen: dict[str, str] = {}
    for record in (part.datasets[0] for part in parts):
        if record.sha256 in seen:
            raise InputError(f"{record.name}: the same data as {seen[record.sha256]}; give every data set once")
        seen[record.sha256] = record.name
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
    """A note if the power of some data sets, but not of all, was compared with a meter."""
    known: dict[bool, list[str]] = {True: [], False: []}
    for part in parts:
        if part.instructions is not None or any(np.isfinite(rows.power_w).any() for rows in part.tables):
            known[part.datasets[0].gain_std is not None].append(part.datasets[0].name)
    if not known[True] or not known[False]:
        return ()
    without, metered = (", ".join(names[:MOST_NAMES]) for names in (known[False], known[True]))
    return (
        f"power of {metered} was compared with an external meter, power of {without} was not: "
        "the gain of their sensors differs by an unknown few per cent, and the fit takes both alike",
    )


def _nothing_left(selection: Selection, name: str | None) -> str:
    """Message for a selection without rows, with an example of each of the most frequent reasons."""
    if not selection.row_count:
        return f"{', '.join(dataset.name for dataset in selection.datasets)}: no rows; name a table that has some"
    counts = count_reasons(selection.rejected)
    example = next(row for row in selection.rejected if row.reason == next(iter(counts)))
    listed = ", ".join(f"{count} {reason}" for reason, count in list(counts.items())[:4])
    wanted = f" for {name}" if name else ""
    where = f"first: {example.source} row {example.row}, {example.detail}"
    return f"no usable row{wanted} among {selection.row_count} ({listed}); {where}"


PLACES: Final = frozenset({"sources", "source_index", "row", "gpus", "gpu_index"})
"""Columns that do not order rows: the place of a row, and indices of GPUs, which are replaced by names."""


def in_own_order(selection: Selection) -> Selection:
    """The selection with kernels and runs sorted by content; equal rows keep their order.

    Folds, samples and floating-point sums depend on the order of rows; sorting gives one bundle for any order of a table.
    """
    kernels, workloads = selection.kernels, selection.workloads
    return replace(
        selection,
        kernels=None if kernels is None else _ordered(kernels, "operators", "operator_index"),
        workloads=None if workloads is None else _ordered(workloads, "workloads", "workload_index"),
    )


def _ordered(rows: Rows, unique: str, index: str) -> Rows:
    """Rows sorted by operator or workload, then by other columns; unused unique values are dropped."""
    values, number = getattr(rows, unique), getattr(rows, index)
    used = sorted(np.unique(number).tolist(), key=lambda place: repr(values[place]))
    rank = np.full(len(values), -1, dtype=np.int64)
    rank[used] = np.arange(len(used))
    changes: dict[str, Any] = {unique: tuple(values[place] for place in used), index: rank[number]}
    columns: list[IntArray] = [
        np.unique(np.asarray(getattr(rows, column.name)), return_inverse=True)[1].reshape(-1)
        for column in fields(rows)
        if column.name not in PLACES | {unique, index}
    ]
    gpu = np.unique(np.array(rows.gpus)[rows.gpu_index], return_inverse=True)[1]
    return replace(rows, **changes).select(np.lexsort((*columns, gpu, rank[number])))
