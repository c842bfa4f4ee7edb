"""Semantic versions of bundles: definition of major, minor and patch steps, and the check that a step is large enough.

major   an answer changes its meaning or is removed: another GPU or specification, real in place of simulated, another
        completion of operator lists, a narrower range of SM clocks; a group of coefficients, power, voltage, idle power, an instruction's
        energy or a block model removed
minor   answers or their intervals change in value, or answers are added: any coefficient, table, tree, range or uncertainty
patch   answers are identical: names, notes, environment, sensor, provenance, stated errors

Below 1.0.0 a minor step suffices for a major change (https://semver.org, section 4).
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

from estimator.bundle.content import Bundle
from estimator.bundle.files import document_of
from estimator.uncertainty.validity import TOLERATED_CLOCK_MHZ
from fitter.errors import ReleaseError

Step = Literal["major", "minor", "patch"]

VERSION: Final = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})", re.ASCII)
"""A semantic version without a pre-release or build, which have no meaning for answers."""

ANSWERS: Final = (
    "host", "groups", "latency_parameters", "power", "voltage", "idle", "tile_predictors", "residuals", "uncertainty", "domain", "clocks",
    "instruction_energies", "block_models",
)  # fmt: skip
"""Sections that determine answers and their intervals."""


def version_key(text: str) -> tuple[int, int, int]:
    """A key that orders semantic versions.  Raises ReleaseError for any other text."""
    match = VERSION.fullmatch(text)
    if match is None:
        raise ReleaseError(f"version {text!r} must read MAJOR.MINOR.PATCH, for example 1.0.0")
    return int(match[1]), int(match[2]), int(match[3])


def needed_step(old: Bundle, new: Bundle) -> tuple[Step, tuple[str, ...]]:
    """The step that the rule requires, and why."""
    if reasons := _major(old, new):
        return "major", reasons
    before, after = document_of(old), document_of(new)
    changed = tuple(f"{name} changed" for name in ANSWERS if before[name] != after[name])
    return ("minor", changed) if changed else ("patch", ("answers are the same",))


def least_version(old: str, step: Step) -> str:
    """The smallest version that a step leads to."""
    major, minor, patch = version_key(old)
    if step == "major" and major:
        return f"{major + 1}.0.0"
    return f"{major}.{minor}.{patch + 1}" if step == "patch" else f"{major}.{minor + 1}.0"


def require_step(old: Bundle, new: Bundle, version: str) -> None:
    """Raise ReleaseError if `version` is not above the old one, or too small a step above it."""
    if version_key(version) <= version_key(old.version):
        raise ReleaseError(f"version {version} must be above {old.version}, the release before")
    step, reasons = needed_step(old, new)
    least = least_version(old.version, step)
    if version_key(version) < version_key(least):
        why = "; ".join(reasons)
        raise ReleaseError(f"version {version} is too small a step from {old.version}: it is a {step} step ({why}); the least is {least}")


def _major(old: Bundle, new: Bundle) -> tuple[str, ...]:
    """Changes that alter the meaning of answers or remove them."""
    reasons = []
    if old.gpu.name != new.gpu.name:
        reasons.append(f"another GPU, {new.gpu.name}")
    elif old.gpu != new.gpu:
        reasons.append("the GPU's specification changed")
    if old.simulated != new.simulated:
        reasons.append("simulated before" if old.simulated else "simulated now")
    if old.completion != new.completion:
        reasons.append(f"operator lists completed by {new.completion or 'nothing'}")
    low, high = new.clocks_mhz
    if low > old.clocks_mhz[0] + TOLERATED_CLOCK_MHZ or high < old.clocks_mhz[1] - TOLERATED_CLOCK_MHZ:
        reasons.append("a narrower range of SM clocks")
    reasons += [f"group {key} removed" for key in old.groups if key not in new.groups]
    reasons += [f"{name} removed" for name in ("power", "voltage", "idle") if getattr(old, name) is not None and getattr(new, name) is None]
    for what, before, after in (("energy of", _instructions(old), _instructions(new)), ("block model", old.block_models, new.block_models)):
        reasons += [f"{what} {name} removed" for name in sorted({*before} - {*after})]
    return tuple(reasons)


def _instructions(bundle: Bundle) -> Mapping[str, object]:
    found: Mapping[str, object] = bundle.instruction_energies.get("instructions", {})
    return found
