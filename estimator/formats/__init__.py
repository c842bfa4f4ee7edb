"""Workload files: reading, by content and not by name, and writing."""

from pathlib import Path

from estimator.completion import RULE_SET, complete
from estimator.formats.energaizer import read_energaizer
from estimator.formats.own import FORMAT, own_text, read_own
from estimator.vocabulary.documents import kind_of, parse_json
from estimator.vocabulary.errors import WorkloadError, require
from estimator.vocabulary.regular_files import MOST_DATA_BYTES, read_regular
from estimator.vocabulary.whole_file import write_whole
from estimator.vocabulary.workload import Workload, merge_counts


def read_workload(path: str | Path, *, completion: bool = True) -> Workload:
    """The workload in a file: the own format, or an EnergAIzer operator list.

    `completion` adds operators that a traced list leaves out; the own format is complete.  `warnings` and `unknown` list assumptions and
    omissions.

    Raises WorkloadError, one line with file, entry, field, value and remedy.
    """
    require(path, (str, Path), "path", "the name of a workload file")
    path = Path(path)
    try:
        content = read_regular(path, MOST_DATA_BYTES)
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}; name a workload file, or a model by --model") from error
    return workload_from_bytes(content, path, completion=completion)


def workload_from_bytes(content: bytes, path: Path, *, completion: bool = True) -> Workload:
    """The workload in the content of a file, as by `read_workload`; `path` names the file and is not opened.  Raises WorkloadError."""
    require(completion, bool, "completion", "True or False")
    try:
        document = parse_json(content)
    except ValueError as error:
        fault = error if content.strip() else "the file is empty"
        raise WorkloadError(f"{path}: {fault}; a workload file is JSON") from error
    if isinstance(document, dict):
        _check_format(document, path)
        return read_own(document, str(path), path.stem)
    if not isinstance(document, list):
        raise WorkloadError(f"{path}: a workload file holds an object or a list of [query, types] pairs, not {kind_of(document)}")
    listing = read_energaizer(document, str(path))
    operators, counts = complete(listing) if completion else merge_counts(listing.operators, listing.counts)
    first_word = path.stem.split("_")[0].lower()
    return Workload(
        name=path.stem,
        operators=operators,
        counts=counts,
        model_family=first_word.removesuffix("model") or first_word,
        unknown=listing.unknown,
        completion=RULE_SET if completion else "",
        warnings=listing.warnings,
        notes=listing.notes,
    )


def write_workload(workload: Workload, path: str | Path) -> None:
    """Write a workload in the own format, atomically.

    Raises UnwrittenError.
    """
    write_whole(Path(path), own_text(workload).encode())


def _check_format(document: dict[str, object], path: Path) -> None:
    if "model_type" in document:
        raise WorkloadError(f"{path}: the configuration of a model; estimate llm, or estimate --model {path} --phase decode, takes it")
    name = document.get("format")
    if name != FORMAT:
        raise WorkloadError(f"{path}: format = {name!r:.60}; a workload file has format {FORMAT!r}, or is a list of [query, types] pairs")
