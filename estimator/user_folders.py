"""Folders of the user's, by the XDG Base Directory Specification: the one that a variable names, else one below the home folder."""

import os
from pathlib import Path

from estimator.errors import EstimatorError


def user_folder(variable: str, below_home: str) -> Path:
    """The folder that an environment variable names, else `below_home` in the home folder; relative and empty names do not count.

    Raises EstimatorError where there is no home folder either.
    """
    named = os.environ.get(variable, "")
    return Path(named) if os.path.isabs(named) else home_folder(variable) / below_home


def home_folder(instead: str) -> Path:
    """HOME, else the home folder that the system knows for this user.

    instead: the variable that would do without one.  Raises EstimatorError where there is none.
    """
    named = os.environ.get("HOME", "")
    if os.path.isabs(named):
        return Path(named)
    import pwd  # hardly ever asked

    try:
        known = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        known = ""
    if not os.path.isabs(known):
        raise EstimatorError(f"no home folder is known: HOME is empty and this user has none; set HOME or {instead}")
    return Path(known)
