"""The local store: a folder of the user's whose bundles are known by name, beside those that come with the package.

It is the folder that WATTPRINT_BUNDLES names, else `wattprint/bundles` in the user's data folder (XDG Base Directory Specification).
"""

import os
import re
from pathlib import Path
from typing import Final

from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.resources import user_folder

VARIABLE: Final = "WATTPRINT_BUNDLES"
SUFFIX: Final = ".json"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names that are a file's on every system."""


def store_folder() -> Path:
    """The folder; it need not exist.  Raises EstimatorError where none can be named."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return user_folder("XDG_DATA_HOME", ".local/share") / "wattprint" / "bundles"


def store_fault() -> tuple[str, bool] | None:
    """What is wrong with a store that WATTPRINT_BUNDLES names, and whether no bundle can be kept there as it is; None where all is well."""
    named = os.environ.get(VARIABLE)
    if not named or os.path.isdir(named):
        return None
    if os.path.lexists(named):
        return f"{VARIABLE} names {named}, which is no folder: the store has no bundles; name a folder", True
    return f"{VARIABLE} names {named}, which does not exist: the store has no bundles; `estimate bundles --add` makes it", False


def stored_names() -> tuple[str, ...]:
    """Names of the bundles in the store, sorted; empty where it cannot be read."""
    try:
        found = [path.name.removesuffix(SUFFIX) for path in store_folder().glob(f"*{SUFFIX}") if path.is_file()]
    except (OSError, EstimatorError):
        return ()
    return tuple(sorted(name for name in found if NAME.fullmatch(name)))


def stored_path(name: str) -> Path:
    """Where a bundle of this name lies, or would."""
    return store_folder() / f"{name}{SUFFIX}"
