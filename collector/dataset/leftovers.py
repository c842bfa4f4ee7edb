"""What a writer that is killed may leave beside its dataset, by name: files that were not whole yet.

They belong to nobody once their writer is dead: whoever holds the claim of the dataset removes them.
"""

from pathlib import Path
from typing import Final

from collector.dataset.claim import is_file_or_link
from collector.dataset.log import LOG_SUFFIX, log_path
from collector.dataset.traces import running_traces_path
from collector.errors import DatasetError
from estimator.whole_file import unfinished

PART_SUFFIX: Final = ".part"
"""Of a file that takes its name when it is whole."""


def part_path(path: Path) -> Path:
    """The name under which a log or its traces are written until they are whole."""
    return path.with_name(f".{path.name}{PART_SUFFIX}")


def remove_leftovers(output: Path, beside: tuple[str, ...] = ()) -> None:
    """Remove the unfinished files of a dataset's killed writers; called by the one that holds its claim.

    `beside` are endings of further files that are kept beside the dataset.  What is no file stays, somebody else made it.
    Raises OSError, and DatasetError for a folder where the log or its traces have to be.
    """
    targets = [output.with_name(f"{output.name}{ending}") for ending in ("", LOG_SUFFIX, *beside)]
    left = [path for target in targets for path, _ in unfinished(target) if is_file_or_link(path)]
    needed = [part_path(log_path(output)), part_path(running_traces_path(output))]
    if not log_path(output).is_file():  # a campaign's traces begin before its log and end before that is removed
        needed.append(running_traces_path(output))
    for path in needed:
        if path.is_dir() and not path.is_symlink():
            raise DatasetError(f"{path} is in the way of this dataset; remove it")
    for path in (*left, *needed):
        path.unlink(missing_ok=True)
