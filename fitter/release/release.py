"""Bundles as releases: versions by the rule of `fitter.release.version_rule`, changelog entries, and what changed from one to the next."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from math import hypot, isfinite, log, nan
from pathlib import Path
from typing import Any, Final

from estimator.bundles.files import Bundle, load_bundle, save_bundle
from estimator.regular_files import read_regular
from estimator.whole_file import write_whole
from fitter.errors import ReleaseError
from fitter.release.version_rule import VERSION, needed_step, require_step, version_key
from fitter.release.workload_changes import WorkloadChange

CHANGELOG_HEAD: Final = "# Changelog of bundle {name}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value that differs between two bundles; nan where one of them lacks it.

    `sigmas` is the difference in standard deviations of both (of logarithms where `relative`), nan where neither is known.
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

    previous: the release before, with which the entry compares.  Raises ReleaseError for a version that is not above the bundle's,
    that is too small a step from the release before, and for files that cannot be written; an existing release is never overwritten.
    """
    if version_key(version) <= version_key(bundle.version):
        raise ReleaseError(f"version {version} must be above {bundle.version}, which {bundle.name} has now")
    if previous is not None:
        require_step(previous, bundle, version)
    with _alone_in(out.absolute().parent, changelog.absolute().parent):
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


@contextmanager
def _alone_in(*folders: Path) -> Iterator[None]:
    """Waits until no other release works in these folders: two that read the same changelog would lose one entry.

    Does not wait where folders cannot be locked, as on some network file systems.
    """
    with ExitStack() as held:
        for folder in sorted({folder.resolve() for folder in folders}):
            with suppress(OSError, ImportError):
                import fcntl

                descriptor = os.open(folder, os.O_RDONLY)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def release_before(folder: Path, name: str, version: str) -> Path | None:
    """The file of the newest release below `version` among NAME-X.Y.Z.json in a folder; None where there is none."""
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
        lines += [f"  - {change.place}: {change.old:.4g} → {change.new:.4g}" for change in moved[:MOST_LISTED]]
    return "\n".join(lines) + "\n"


TELLING_SIGMAS: Final = 3.0
"""A coefficient moved if it changed by more standard deviations than this."""

MOST_LISTED: Final = 12
"""Coefficients that a changelog entry lists."""


def differences(old: Bundle, new: Bundle) -> list[Change]:
    """Every coefficient that differs, in the order of the new bundle, then those that it lacks."""
    return [change for change in _pairs(old, new) if change.old != change.new]


def differences_document(old: Bundle, new: Bundle, changes: Sequence[WorkloadChange] = ()) -> dict[str, Any]:
    """What `fit diff --json` says; `changes` of workloads."""
    needed = needed_step(old, new)
    return {
        "old": _identity(old),
        "new": _identity(new),
        "same_gpu": old.gpu == new.gpu,
        "step": needed.step,
        "reasons": list(needed.reasons),
        "workloads": [change.document() for change in changes],
        "changes": [
            {"place": c.place, "old": _known(c.old), "new": _known(c.new), "factor": _known(c.factor), "sigmas": _known(c.sigmas)}
            for c in differences(old, new)
        ],
    }


def load_pair(old: str, new: str) -> tuple[Bundle, Bundle]:
    """Two bundles to compare.  Raises BundleError as `load_bundle`."""
    return load_bundle(old), load_bundle(new)


def _pairs(old: Bundle, new: Bundle) -> Iterator[Change]:
    for key in (*new.groups, *(key for key in old.groups if key not in new.groups)):
        first, second = old.groups.get(key), new.groups.get(key)
        names = dict.fromkeys((*(second.coefficients if second else ()), *(first.coefficients if first else ())))
        for name in names:
            a = first.coefficients.get(name, nan) if first else nan
            b = second.coefficients.get(name, nan) if second else nan
            spread = hypot(first.ln_std.get(name, nan) if first else nan, second.ln_std.get(name, nan) if second else nan)
            yield Change(place=f"{key}.{name}", old=a, new=b, sigmas=_log_sigmas(a, b, spread))
    spread = hypot(old.host.launch_ln_std, new.host.launch_ln_std)
    before, after = old.host.launch_s, new.host.launch_s
    yield Change(place="host.launch_s", old=before, new=after, sigmas=_log_sigmas(before, after, spread))
    yield Change(place="host.overlap_exponent", old=old.host.overlap_exponent, new=new.host.overlap_exponent, sigmas=nan)
    yield from _power_pairs(old, new)


def _power_pairs(old: Bundle, new: Bundle) -> Iterator[Change]:
    a, b = old.power, new.power
    if a is None and b is None:
        return
    for name in dict.fromkeys((*(b.capacitance_f if b else ()), *(a.capacitance_f if a else ()))):
        first, second = a.capacitance_f.get(name, nan) if a else nan, b.capacitance_f.get(name, nan) if b else nan
        spread = hypot(a.capacitance_std_f.get(name, nan) if a else nan, b.capacitance_std_f.get(name, nan) if b else nan)
        yield Change(place=f"power.capacitance_f.{name}", old=first, new=second, sigmas=abs(second - first) / spread if spread > 0 else nan)
    for name, std in (("busy_w", "busy_std_w"), ("active_w", "active_std_w"), ("voltage_exponent", "")):
        first, second = getattr(a, name, nan), getattr(b, name, nan)
        spread = hypot(getattr(a, std, nan), getattr(b, std, nan)) if std else nan
        yield Change(place=f"power.{name}", old=first, new=second, sigmas=abs(second - first) / spread if spread > 0 else nan)


def _log_sigmas(old: float, new: float, spread: float) -> float:
    return abs(log(new / old)) / spread if old > 0 and new > 0 and spread > 0 else nan


def _identity(bundle: Bundle) -> dict[str, str]:
    return {"name": bundle.name, "version": bundle.version, "digest": bundle.digest, "gpu": bundle.gpu.name}


def _known(value: float) -> float | None:
    return value if isfinite(value) else None


MOST_CHANGELOG_BYTES: Final = 16 << 20


def _changelog(path: Path) -> str:
    try:
        return read_regular(path, MOST_CHANGELOG_BYTES).decode("utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ReleaseError(f"{path}: cannot be read as a changelog ({error})") from error


def _with_entry(old: str, bundle: Bundle, entry: str) -> str:
    """The changelog with a new entry on top, below its heading."""
    head, _, rest = old.partition("\n## ")
    heading = head.rstrip() + "\n" if head.strip() else CHANGELOG_HEAD.format(name=bundle.name)
    return f"{heading}\n{entry}" + (f"\n## {rest}" if rest else "")
