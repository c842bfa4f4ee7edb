"""Check that the tests catch manually written faults of the engines.

    python scripts/mutants.py [--only NAME] [--count N] [--list]

The program copies the tracked files to a temporary folder; there it inserts each fault of `mutants.toml` in turn, runs its tests and
removes it again.  It prints "caught" or "SURVIVED" for each.  Exit status 0 if all were caught, 3 if one survived, 1 if a text is not
found or tests fail without any fault.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TypedDict

import click

ROOT = Path(__file__).resolve().parent.parent
TESTS_FAILED = 1


class Mutant(TypedDict):
    """A text of a file, its replacement, and the tests that then fail."""

    file: str
    old: str
    new: str
    tests: list[str]


def mutants() -> dict[str, Mutant]:
    """All mutants by name.  Raises ClickException naming every mutant that no longer matches the tree."""
    found: dict[str, Mutant] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    odd = []
    for name, one in found.items():
        path = ROOT / one["file"]
        count = path.read_text(encoding="utf-8").count(one["old"]) if path.is_file() else 0
        odd += [] if count == 1 else [f"{name}: its text stands {count} times in {one['file']}: {one['old']!r}"]
        odd += [f"{name}: {test} is not there" for test in one["tests"] if not (ROOT / test).exists()]
    if odd:
        raise click.ClickException("\n".join([f"{len(odd)} faults do not fit the tree; mend scripts/mutants.toml:", *odd]))
    return found


def copied(folder: Path) -> Path:
    """A copy of the tracked and new files; recorded data are not copied."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def outcome(tree: Path, tests: list[str]) -> tuple[int, str]:
    """Exit status of pytest on these tests, and its last line."""
    data = os.environ.get("WATTPRINT_SHARED_DATA", str(ROOT.parent / "shared" / "data"))
    environment = {**os.environ, "PYTHONPATH": str(tree), "WATTPRINT_SHARED_DATA": data, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    return run.returncode, (run.stdout.strip().splitlines() or [run.stderr.strip()])[-1]


@click.command()
@click.option("--only", default="", metavar="NAME", help="Only faults whose name contains this.")
@click.option("--count", type=click.IntRange(1), help="Only so many, spread over the list.")
@click.option("--list", "listing", is_flag=True, help="Name the faults and look for their texts, and do no more.")
def main(only: str, count: int | None, listing: bool) -> None:
    """Insert each fault and run the tests that must catch it."""
    chosen = {name: one for name, one in mutants().items() if only in name}
    if count is not None:
        names = list(chosen)
        chosen = {name: chosen[name] for name in names[:: max(1, len(names) // count)][:count]}
    if listing:
        click.echo("\n".join(f"{name}: {one['file']}" for name, one in chosen.items()))
        return
    survived = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copied(Path(folder))
        for name, one in chosen.items():
            path, text = tree / one["file"], (ROOT / one["file"]).read_text(encoding="utf-8")
            path.write_text(text.replace(one["old"], one["new"]), encoding="utf-8")
            status, last = outcome(tree, one["tests"])
            path.write_text(text, encoding="utf-8")
            if status not in (0, TESTS_FAILED):
                raise click.ClickException(f"{name}: pytest ended with status {status}: {last}")
            survived += [] if status else [name]
            click.echo(f"{'caught' if status else 'SURVIVED':9} {name}: {last}")
        status, last = outcome(tree, sorted({test for one in chosen.values() for test in one["tests"]}))
        if status:
            raise click.ClickException(f"tests fail without any fault: {last}")
    click.echo(f"{len(chosen) - len(survived)} of {len(chosen)} caught" + (f"; survived: {', '.join(survived)}" if survived else ""))
    raise SystemExit(3 if survived else 0)


if __name__ == "__main__":
    main()
