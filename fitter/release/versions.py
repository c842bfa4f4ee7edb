"""Bundles as releases: semantic versions, the check that a step is large enough, differences of two bundles, entries in a changelog.

major   an answer changes its meaning or is removed: another GPU or specification, real in place of simulated, another
        completion of operator lists, a narrower range of SM clocks; a group of coefficients, power, voltage, idle power, an energy of
        counts or a block model removed
minor   answers or their intervals change in value, or answers are added: any coefficient, table, tree, range or uncertainty
patch   answers are identical: names, notes, environment, sensor, provenance, stated errors

Below 1.0.0 a minor step suffices for a major change (https://semver.org, section 4).
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import hypot, isfinite, log, nan
from pathlib import Path
from typing import Final, Literal

import numpy as np

from estimator.blocks.model import ENERGIES, TIMES, models_from_section
from estimator.bundle.content import Bundle
from estimator.bundle.files import document_of, save_bundle
from estimator.counts.energies import energies_from_section
from estimator.formats import read_workload
from estimator.questions.estimates import estimate
from estimator.uncertainty.validity import TOLERATED_CLOCK_MHZ
from estimator.vocabulary.documents import printable
from estimator.vocabulary.reader import plain
from estimator.vocabulary.regular_files import MOST_DATA_BYTES, read_regular
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.values import frozen
from estimator.vocabulary.whole_file import write_whole
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
    energies = (one.instruction_energies.get("terms", ()) for one in (old, new))
    for what, before, after in (("energy of", *energies), ("block model", old.block_models, new.block_models)):
        reasons += [f"{what} {name} removed" for name in sorted({*before} - {*after})]
    return tuple(reasons)


LEAST_CHANGE: Final = 0.02
"""Least relative change of a prediction that counts [1]."""

UNKNOWN: Final = (nan, nan)

Stated = tuple[float, float]
"""A value and the standard deviation of its logarithm."""

StatedValues = dict[str, Stated]
"""Values by their place in a bundle or an answer."""


@frozen
class Difference:
    """One value that differs between two bundles; nan if one of them lacks it.

    factor   new over old
    sigmas   |ln(new / old)| in standard deviations of both, nan if none is known
    """

    place: str
    old: float
    new: float
    factor: float
    sigmas: float


def _differences(before: StatedValues, after: StatedValues) -> list[Difference]:
    """Every value that differs, in the order of the new bundle, then those that it lacks."""
    found = []
    for place in dict.fromkeys((*after, *before)):
        (old, old_std), (new, new_std) = before.get(place, UNKNOWN), after.get(place, UNKNOWN)
        factor, spread = new / old if old else nan, hypot(old_std, new_std)
        sigmas = abs(log(factor)) / spread if factor > 0.0 and spread > 0.0 else nan
        if old != new and (isfinite(old) or isfinite(new)):
            found.append(Difference(place=place, old=old, new=new, factor=factor, sigmas=sigmas))
    return found


def coefficient_differences(old: Bundle, new: Bundle) -> list[Difference]:
    """Coefficients that differ."""
    return _differences(_coefficients(old), _coefficients(new))


def workload_differences(old: Bundle, new: Bundle, files: Sequence[str]) -> list[Difference]:
    """Latency, power and energy of workloads (of the examples without files) that change by more than LEAST_CHANGE.

    At the lowest, the middle and the highest clock in the range of both bundles; each bundle on its own GPU.
    """
    low, high = (max(old.clocks_mhz[0], new.clocks_mhz[0]), min(old.clocks_mhz[1], new.clocks_mhz[1]))
    clocks = sorted({low, 0.5 * (low + high), high}) if low <= high else None
    workloads = [read_workload(path) for path in [Path(name) for name in files] or sorted(resource_folder("examples").glob("*.json"))]
    predictions: list[StatedValues] = []
    for bundle in (old, new):
        own: StatedValues = {}
        for workload in workloads:
            for one in estimate(workload, bundle, sm_clock_mhz=clocks):
                for name in ("latency_s", "power_w", "energy_j"):
                    value = float(getattr(one, name))
                    std = float(getattr(one, f"{name}_std")) / value if value else nan
                    own[f"{workload.name} at {one.asked_clock_mhz:g} MHz: {name}"] = (value, std)
        predictions.append(own)
    return [one for one in _differences(*predictions) if not abs(one.factor - 1.0) <= LEAST_CHANGE]


def _coefficients(bundle: Bundle) -> StatedValues:
    found: StatedValues = {}
    for key, group in bundle.groups.items():
        found |= {f"{key}.{name}": (value, group.ln_std.get(name, nan)) for name, value in group.coefficients.items()}
    found["host.launch_s"] = (bundle.host.launch_s, bundle.host.launch_ln_std)
    found["host.overlap_exponent"] = (bundle.host.overlap_exponent, nan)
    stated: StatedValues = {}
    if (power := bundle.power) is not None:
        stated |= {f"power.capacitance_f.{name}": (c, power.capacitance_std_f.get(name, nan)) for name, c in power.capacitance_f.items()}
        stated |= {"power.busy_w": (power.busy_w, power.busy_std_w), "power.active_w": (power.active_w, power.active_std_w)}
        stated["power.voltage_exponent"] = (power.voltage_exponent, nan)
    if (energies := energies_from_section(bundle.instruction_energies)) is not None:
        stated |= {f"instruction_energies.{term}": energies.term(term) for term in energies.terms}
    for key, model in models_from_section(bundle.block_models).items():
        time_std_s, energy_std = model.times_s * np.sqrt(np.diag(model.time_covariance))[:-1], np.sqrt(np.diag(model.energy_covariance))
        figures = zip((*TIMES, *ENERGIES), (*model.times_s, *model.energies), (*time_std_s, *energy_std), strict=True)
        stated |= {f"block_models.{key}.{name}": (value, std) for name, value, std in figures}
    return found | {place: (float(value), float(std / value) if value else nan) for place, (value, std) in stated.items()}


def differences_document(old: Bundle, new: Bundle, workloads: Sequence[Difference]) -> dict[str, object]:
    """Output of `fit diff --json`; `workloads` as from `workload_differences`."""
    step, reasons = needed_step(old, new)
    found = {"reasons": reasons, "changes": coefficient_differences(old, new), "workloads": workloads}
    return {"old": identity(old), "new": identity(new), "step": step, **{name: plain(list(values)) for name, values in found.items()}}


def identity(bundle: Bundle) -> dict[str, str]:
    """Which bundle it is, for programs."""
    return {"name": bundle.name, "version": bundle.version, "digest": bundle.digest, "gpu": bundle.gpu.name}


TELLING_SIGMAS: Final = 3.0
"""A coefficient moved if it changed by more standard deviations than this."""


def release(bundle: Bundle, version: str, out: Path, previous: Bundle | None, note: str, today: str) -> tuple[Bundle, Path]:
    """The bundle under a new version, written to `out`, and the changelog beside it, with an entry on top.

    previous: the previous release, for the comparison in the entry.  Raises ReleaseError for a version that is not above the bundle's or is
    too small a step from the previous release, and for files that cannot be written; an existing release is never overwritten.
    """
    if version_key(version) <= version_key(bundle.version):
        raise ReleaseError(f"version {version} must be above {bundle.version}, which {bundle.name} has now")
    if previous is not None:
        require_step(previous, bundle, version)
    if out.exists():
        raise ReleaseError(f"{out} exists; a released bundle is never overwritten: name another file with -o")
    changelog = out.parent / f"{file_name(bundle.name)}.changelog.md"
    try:
        old = read_regular(changelog, MOST_DATA_BYTES).decode("utf-8") if changelog.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ReleaseError(f"{changelog}: cannot be read as a changelog ({error})") from error
    released = save_bundle(replace(bundle, version=version), out)
    heading, _, rest = old.partition("\n## ")
    text = f"{heading.rstrip() or f'# Changelog of bundle {bundle.name}'}\n\n{changelog_entry(released, previous, note, today)}"
    try:
        write_whole(changelog, (text + (f"\n## {rest}" if rest else "")).encode("utf-8"))
    except OSError as error:
        raise ReleaseError(f"{error}; {out} was written without a changelog entry") from error
    return released, changelog


def file_name(name: str) -> str:
    """A bundle's name as part of a file name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".") or "bundle"


def newest_release(folder: Path, name: str) -> Path | None:
    """The file of the newest release among NAME-X.Y.Z.json in a folder; None without one."""
    versions = {path: path.name.removeprefix(f"{name}-").removesuffix(".json") for path in folder.glob("*.json")}
    keys = {path: version_key(text) for path, text in versions.items() if VERSION.fullmatch(text)}
    return max(keys, key=keys.__getitem__, default=None)


def changelog_entry(bundle: Bundle, previous: Bundle | None, note: str, today: str) -> str:
    """The entry of one release, in Markdown."""
    rows = sum(dataset.used for dataset in bundle.provenance.datasets)
    lines = [f"## {bundle.version} – {today}", "", f"- {bundle.gpu.name}, {rows} rows, digest `{bundle.digest}`"]
    if note:
        lines.append(f"- {printable(' '.join(note.split()))}")
    if previous is not None:
        step, reasons = needed_step(previous, bundle)
        moved = sum(one.sigmas > TELLING_SIGMAS for one in coefficient_differences(previous, bundle))
        lines.append(f"- a {step} step ({'; '.join(reasons)})")
        lines.append(f"- against {previous.version}: {moved} coefficients moved by more than {TELLING_SIGMAS:g} standard deviations")
    return "\n".join(lines) + "\n"
