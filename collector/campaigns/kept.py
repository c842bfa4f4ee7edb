"""Rows of an earlier run that a campaign goes on from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from collector.dataset import DatasetError, read_kernel_dataset
from collector.dataset.log import RecoveredLog, log_path, read_log
from collector.errors import CampaignError


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRows:
    """Rows of an earlier run of the same campaign, and its metadata."""

    table: pa.Table
    metadata: dict[str, Any]


def kept_rows(output: Path, key: Mapping[str, Any]) -> KeptRows | None:
    """Rows to go on from: of an unfinished log, else of a finished dataset; None where there is neither.

    Raises CampaignError where they belong to another campaign, board or version, and says which.
    """
    log = log_path(output)
    if log.is_file():
        recovered = read_log(log)
        kept = KeptRows(table=recovered.table, metadata=_closing_metadata(output, recovered))
    elif output.is_file():
        dataset = read_kernel_dataset(output)
        kept = KeptRows(table=dataset.table, metadata=dataset.metadata)
    else:
        return None
    before = kept.metadata.get("key")
    if not isinstance(before, dict):
        raise CampaignError(f"{output}: not from a campaign that can be resumed; use --fresh, or another --out")
    differs = [f"{name} was {before.get(name)!r}, is {value!r}" for name, value in key.items() if before.get(name) != value]
    if len(differs) > 1:  # a plan follows from the rest: its digest tells nothing beside it
        differs = [text for text in differs if not text.startswith("plan was")]
    if differs:
        raise CampaignError(f"{output} cannot be resumed: {'; '.join(differs)}; use the same settings, --fresh, or another --out")
    return kept


def _closing_metadata(output: Path, recovered: RecoveredLog) -> dict[str, Any]:
    """What is known of the rows of a log: more than the log says where their dataset is written, and only the log was not yet removed."""
    if output.is_file():
        try:
            dataset = read_kernel_dataset(output)
        except DatasetError:
            return recovered.metadata
        if _measurements(dataset.table) == _measurements(recovered.table):
            return dataset.metadata
    return recovered.metadata


def _measurements(table: pa.Table) -> set[tuple[str, float | None]]:
    """Which measurements a table holds: the same point measured again is another one."""
    return set(zip(table.column("row_id").to_pylist(), table.column("started_unix_s").to_pylist(), strict=True))
