"""Bundles as releases: versions by the rule of `fitter.release.version_rule`, and entries in a changelog."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from estimator.bundle.content import Bundle
from estimator.bundle.files import MAX_FILE_BYTES, save_bundle
from estimator.vocabulary.regular_files import read_regular
from estimator.vocabulary.whole_file import write_whole
from fitter.errors import ReleaseError
from fitter.release.differences import coefficient_differences
from fitter.release.version_rule import VERSION, needed_step, require_step, version_key

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
        old = read_regular(changelog, MAX_FILE_BYTES).decode("utf-8") if changelog.exists() else ""
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


def release_before(folder: Path, name: str, version: str) -> Path | None:
    """The file of the newest release below `version` among NAME-X.Y.Z.json in a folder; None without one."""
    versions = {path: path.name.removeprefix(f"{name}-").removesuffix(".json") for path in folder.glob("*.json")}
    keys = {path: version_key(text) for path, text in versions.items() if VERSION.fullmatch(text)}
    return max((path for path, key in keys.items() if key < version_key(version)), key=lambda path: keys[path], default=None)


def changelog_entry(bundle: Bundle, previous: Bundle | None, note: str, today: str) -> str:
    """The entry of one release, in Markdown."""
    rows = sum(dataset.used for dataset in bundle.provenance.datasets)
    lines = [f"## {bundle.version} – {today}", "", f"- {bundle.gpu.name}, {rows} rows, digest `{bundle.digest}`"]
    if note:
        lines.append(f"- {' '.join(note.split())}")
    if previous is not None:
        step, reasons = needed_step(previous, bundle)
        moved = sum(one.sigmas > TELLING_SIGMAS for one in coefficient_differences(previous, bundle))
        lines.append(f"- a {step} step ({'; '.join(reasons)})")
        lines.append(f"- against {previous.version}: {moved} coefficients moved by more than {TELLING_SIGMAS:g} standard deviations")
    return "\n".join(lines) + "\n"
