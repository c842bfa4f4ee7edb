"""Workload files: reading, by content whatever the name, and writing."""

import re
from pathlib import Path
from typing import Any, Final

from estimator.arguments import require
from estimator.completion import Rule, complete, parse_completion
from estimator.errors import WorkloadError
from estimator.formats.document import distinct_items, parse_document, read_text
from estimator.formats.energaizer import read_energaizer
from estimator.formats.entries import distinct_values
from estimator.formats.own import FORMAT, own_text, read_own
from estimator.kinds import kind_of, shown
from estimator.whole_file import write_whole
from estimator.workload import Workload, merge_counts

__all__ = ["read_workload", "workload_from_text", "write_workload"]

BATCH_IN_NAME: Final = re.compile(r"_b(\d{1,6})(?=_|$)")


def read_workload(path: str | Path, *, completion: bool | str = True, attention: str = "") -> Workload:
    """The workload in a file: the own format, or an EnergAIzer operator list.

    `completion` is for lists in execution order, which the own format is not: True adds what a traced list leaves
    out, False takes the list as it is, a text names a rule set and rules to leave out
    ("eager-pytorch-1 -batch_norm").  What was assumed or left out stands in `warnings` and `unknown`.
    `attention` brings attention into one form: "eager" as separate kernels, "flash" fused, "" as it is written.

    Raises WorkloadError, one line with file, entry, field, value and remedy.
    """
    require(path, (str, Path), "path", "the name of a workload file")
    path = Path(path)
    return workload_from_text(read_text(path), path, completion=completion, attention=attention)


def workload_from_text(text: str, path: Path, *, completion: bool | str = True, attention: str = "") -> Workload:
    """The workload in the text of a file, as `read_workload` has it; `path` names the text and is not opened.  Raises WorkloadError."""
    setting, rules = parse_completion(completion)
    items = distinct_items(text)
    if items is None:
        document = parse_document(text, path)
        if isinstance(document, dict):
            _check_format(document, path)
            return _in_form(read_own(document, str(path), path.stem), attention)
        if not isinstance(document, list):
            raise WorkloadError(f"{path}: a workload file holds an object or a list, not {kind_of(document)}")
        items = distinct_values(document)
    return _in_form(_from_list(*items, path, setting, rules), attention)


def _in_form(workload: Workload, attention: str) -> Workload:
    """The workload with its attention in a form; "": as it is."""
    if not attention:
        return workload
    from estimator.forms.rewriting import with_attention  # most workloads are taken as they are

    return with_attention(workload, attention)


def _from_list(values: list[Any], order: list[int], path: Path, setting: str, rules: dict[str, Rule]) -> Workload:
    hint = BATCH_IN_NAME.search(path.stem)
    listing = read_energaizer(values, order, str(path), int(hint[1]) if hint else 0)
    operators, counts = complete(listing, rules) if rules else merge_counts(listing.operators, listing.counts)
    return Workload(
        name=path.stem,
        operators=operators,
        counts=counts,
        model_family=_model_family(path.stem),
        unknown=listing.unknown,
        completion=setting,
        warnings=listing.warnings,
        notes=listing.notes,
    )


def write_workload(workload: Workload, path: str | Path) -> None:
    """Write a workload in the own format, whole or not at all.

    Raises UnwrittenError.
    """
    write_whole(Path(path), own_text(workload).encode())


def _check_format(document: dict[str, Any], path: Path) -> None:
    name = document.get("format")
    if name == FORMAT:
        return
    if isinstance(name, str) and name.startswith("wattprint-"):
        raise WorkloadError(f"{path}: this is a {name.removeprefix('wattprint-')}, not a workload")
    raise WorkloadError(f"{path}: format = {shown(name)}; a workload file has format {FORMAT!r}, or is a list of [query, types] pairs")


def _model_family(stem: str) -> str:
    """The first word of a file name as a label: "bertmodel_large_…" is bert."""
    first = stem.split("_")[0].lower()
    return first.removesuffix("model") or first
