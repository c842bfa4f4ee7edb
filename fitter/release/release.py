"""Bundles as releases: versions by the rule of `fitter.release.version_rule`, changelog entries, and differences between releases."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot, log, nan
from pathlib import Path
from typing import Final

from estimator.bundle.content import Bundle
from estimator.bundle.files import MAX_FILE_BYTES, save_bundle
from estimator.vocabulary.reader import plain
from estimator.vocabulary.regular_files import read_regular
from estimator.vocabulary.whole_file import write_whole
from fitter.errors import ReleaseError
from fitter.release.version_rule import VERSION, needed_step, require_step, version_key
from fitter.release.workload_changes import WorkloadChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value that differs between two bundles; nan if one of them lacks it.

    `sigmas` is the difference in standard deviations of both (of logarithms where `relative`), nan if neither is known.
    """

    place: str
    old: float
    new: float
    sigmas: float

    @property
    def factor(self) -> float:
        """New over old."""
        return self.new / self.old if self.old else nan


def release(bundle: Bundle, version: str, out: Path, changelog: Path, previous: Bundle | None, note: str, today: str) -> Bundle:
    """The bundle under a new version, written to `out`, with an entry on top of `changelog`.

    previous: the previous release, for the comparison in the entry.  Raises ReleaseError for a version that is not above the bundle's or is
    too small a step from the previous release, and for files that cannot be written; an existing release is never overwritten.
    """
    if version_key(version) <= version_key(bundle.version):
        raise ReleaseError(f"version {version} must be above {bundle.version}, which {bundle.name} has now")
    if previous is not None:
        require_step(previous, bundle, version)
    if out.exists():
        raise ReleaseError(f"{out} exists; a released bundle is never overwritten: name another file with -o")
    old = _changelog(changelog)
    released = save_bundle(replace(bundle, version=version), out)
    text = _with_entry(old, released, changelog_entry(released, previous, note, today))
    try:
        write_whole(changelog, text.encode("utf-8"))
    except OSError as error:
        raise ReleaseError(f"{error}; {out} was written without a changelog entry") from error
    return released


def release_before(folder: Path, name: str, version: str) -> Path | None:
    """The file of the newest release below `version` among NAME-X.Y.Z.json in a folder; None without one."""
    wanted, found = version_key(version), []
    for path in folder.glob("*.json"):
        text = path.name.removesuffix(".json").removeprefix(f"{name}-")
        if path.name.startswith(f"{name}-") and VERSION.fullmatch(text) and version_key(text) < wanted:
            found.append((version_key(text), path))
    return max(found)[1] if found else None


def changelog_entry(bundle: Bundle, previous: Bundle | None, note: str, today: str) -> str:
    """The entry of one release, in Markdown."""
    rows = sum(dataset.used for dataset in bundle.provenance.datasets)
    lines = [f"## {bundle.version} – {today}", "", f"- {bundle.gpu.name}, {rows} rows, digest `{bundle.digest}`"]
    if note:
        lines.append(f"- {' '.join(note.split())}")
    if previous is not None:
        moved = [change for change in differences(previous, bundle) if change.sigmas > TELLING_SIGMAS]
        lines.append(f"- {needed_step(previous, bundle).text()}")
        lines.append(f"- against {previous.version}: {len(moved)} coefficients moved by more than {TELLING_SIGMAS:g} standard deviations")
        lines += [f"  - {change.place}: {change.old:.4g} → {change.new:.4g}" for change in moved[:12]]
    return "\n".join(lines) + "\n"


TELLING_SIGMAS: Final = 3.0
"""A coefficient moved if it changed by more standard deviations than this."""


def differences(old: Bundle, new: Bundle) -> list[Change]:
    """Every coefficient that differs, in the order of the new bundle, then those that it lacks."""
    before, after = _coefficients(old), _coefficients(new)
    unknown, found = (nan, nan, False), []
    for place in dict.fromkeys((*after, *before)):
        (a, std_a, relative), (b, std_b, _) = before.get(place, unknown), after.get(place, unknown)
        spread = hypot(std_a, std_b)
        apart = abs(log(b / a)) if relative and a > 0 and b > 0 else nan if relative else abs(b - a)
        if a != b:
            found.append(Change(place=place, old=a, new=b, sigmas=apart / spread if spread > 0 else nan))
    return found


def _coefficients(bundle: Bundle) -> dict[str, tuple[float, float, bool]]:
    """Coefficients by place: value, standard deviation, and whether that is of the logarithm."""
    found: dict[str, tuple[float, float, bool]] = {}
    for key, group in bundle.groups.items():
        found |= {f"{key}.{name}": (value, group.ln_std.get(name, nan), True) for name, value in group.coefficients.items()}
    found["host.launch_s"] = (bundle.host.launch_s, bundle.host.launch_ln_std, True)
    found["host.overlap_exponent"] = (bundle.host.overlap_exponent, nan, True)
    if (power := bundle.power) is not None:
        farads = power.capacitance_f.items()
        found |= {f"power.capacitance_f.{name}": (value, power.capacitance_std_f.get(name, nan), False) for name, value in farads}
        found |= {"power.busy_w": (power.busy_w, power.busy_std_w, False), "power.active_w": (power.active_w, power.active_std_w, False)}
        found["power.voltage_exponent"] = (power.voltage_exponent, nan, False)
    return found


def differences_document(old: Bundle, new: Bundle, changes: Sequence[WorkloadChange] = ()) -> dict[str, object]:
    """Output of `fit diff --json`; `changes` of workloads."""
    needed = needed_step(old, new)
    names = ("name", "version", "digest")
    return {
        **{
            which: {**{name: getattr(bundle, name) for name in names}, "gpu": bundle.gpu.name}
            for which, bundle in (("old", old), ("new", new))
        },
        "same_gpu": old.gpu == new.gpu,
        "step": needed.step,
        "reasons": list(needed.reasons),
        "workloads": [{**plain(one), "change": plain(one.change), "telling": one.telling} for one in changes],
        "changes": [{**plain(change), "factor": plain(change.factor)} for change in differences(old, new)],
    }


def _changelog(path: Path) -> str:
    try:
        return read_regular(path, MAX_FILE_BYTES).decode("utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ReleaseError(f"{path}: cannot be read as a changelog ({error})") from error


def _with_entry(old: str, bundle: Bundle, entry: str) -> str:
    """The changelog with a new entry on top, below its heading."""
    head, _, rest = old.partition("\n## ")
    heading = head.rstrip() + "\n" if head.strip() else f"# Changelog of bundle {bundle.name}\n"
    return f"{heading}\n{entry}" + (f"\n## {rest}" if rest else "")
