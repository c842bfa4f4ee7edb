"""Locations of the distribution's data files: specifications, boards, campaigns, sensors, models, energies, bundles, examples."""

import os
from pathlib import Path
from typing import Final

from estimator.vocabulary.errors import EstimatorError

OWN_FOLDER: Final = frozenset({"bundles", "examples"})
"""Kinds that lie at the root of the repository, not in `configs`."""

_PACKAGE: Final = Path(__file__).resolve().parents[1]


def resource_folder(kind: str) -> Path:
    """The folder that holds data files of a kind.

    An installed distribution carries them inside this package (`_configs/KIND`, `_bundles`, `_examples`); a source checkout
    has them in `configs/KIND`, `bundles` and `examples` beside it.  The folder need not exist.
    """
    folder = kind if kind in OWN_FOLDER else f"configs/{kind}"
    inside = _PACKAGE / f"_{folder}"
    return inside if inside.is_dir() else _PACKAGE.parent / folder


def resource_names(kind: str, suffix: str = ".toml") -> tuple[str, ...]:
    """Names of the data files of a kind, without `suffix`, sorted; empty if there is no folder."""
    return tuple(sorted(path.name.removesuffix(suffix) for path in resource_folder(kind).glob(f"*{suffix}") if path.is_file()))


def user_folder(variable: str, below_home: str) -> Path:
    """The folder that an environment variable names, else `below_home` in the home folder; relative and empty names do not count.

    Raises EstimatorError if there is no home folder either.
    """
    named = Path(os.environ.get(variable, ""))
    home = Path(os.path.expanduser("~"))
    if not (named.is_absolute() or home.is_absolute()):
        raise EstimatorError(f"no home folder is known: set HOME or {variable}")
    return named if named.is_absolute() else home / below_home
