"""Fit the bundles that come with the package from the published measurements, and write a card of each.

    python -m scripts.bundles [--data ../shared/data] [--out bundles] [--cards] [NAME...]

`scripts/bundles.toml` says what each bundle is fitted on.  The fit is that of `fit`; `scripts.thinning` then makes the file small.
Errors of kernels are those of a fit without a fifth of the sites – (n, k) of products, heads of attention – on these; errors of whole
models those of fits without a fifth of the workloads.
"""

import hashlib
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from estimator.bundle.content import Bundle, HeldOut
from estimator.bundle.files import load_bundle, save_bundle
from estimator.model.coefficients import BY, section_words
from estimator.uncertainty.sources import unfitted_groups
from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.quantities import BoolArray
from estimator.vocabulary.reader import read
from estimator.vocabulary.specifications import load_gpu
from estimator.vocabulary.workload import Operator
from fitter.bundle.calibration import calibrate
from fitter.errors import FitterError
from fitter.latency.intervals import SITES
from fitter.rows.columns import KernelRows, Selection
from fitter.rows.rejected import OTHER_GPU
from fitter.rows.selection import read_selection
from fitter.validate.predictions import WORKLOAD_FAMILY, compared, error_rows, kind_of, label_of, predict_rows
from scripts.thinning import thinned

ROOT: Final = Path(__file__).resolve().parent.parent
OWN: Final = "wattprint"
"""The laboratory whose files lie in this repository, below bundles/data."""

MOST_BYTES: Final = 300_000
"""Largest file of a bundle that comes with the package [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laboratory:
    """Who measured: the files of one or several folders."""

    name: str
    what: str
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a bundle is fitted on.

    priors: the bundle from which the fit starts; further ones lend energies if no row has power.
    slow_hosts: collections whose collectives among more than two boards are left out.
    """

    gpu: str
    data: tuple[str, ...]
    priors: tuple[str, ...] = ()
    slow_hosts: tuple[str, ...] = ()
    not_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The content of scripts/bundles.toml."""

    laboratories: dict[str, Laboratory]
    bundles: dict[str, Recipe]


def read_table() -> Table:
    """The recipes, in the order in which they are fitted."""
    document: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "scripts" / "bundles.toml").read_text(encoding="utf-8"))
    return Table(
        laboratories={name: read(Laboratory, one) for name, one in document["laboratories"].items()},
        bundles={name: read(Recipe, one) for name, one in document["bundles"].items()},
    )


def fitted(name: str, recipe: Recipe, data: Path, out: Path) -> Bundle:
    """The bundle of a recipe, with its errors on sites and workloads left out."""
    files = [(ROOT if laboratory_of(file) == OWN else data) / file for file in recipe.data]
    priors = [load_bundle(out / f"{one}.json") for one in recipe.priors]
    selection = by_laboratory(with_fast_links(read_selection(files, recipe.gpu), recipe.slow_hosts), recipe)
    calibrated = partial(calibrate, gpu=load_gpu(recipe.gpu), priors=priors)
    whole = calibrated(selection, name=name)
    errors = [row for row in whole.errors if row["family"] == WORKLOAD_FAMILY]
    if selection.kernels is not None:
        held = held_sites(selection.kernels)
        part = replace(selection, kernels=selection.kernels.select(~held))
        rest = thinned(calibrated(part, holdout=0.0).bundle, MOST_BYTES)
        errors = [*error_rows(compared(predict_rows(rest, selection.kernels.select(held)))), *errors]
    return thinned(replace(whole.bundle, errors=tuple(errors)), MOST_BYTES)


def with_fast_links(selection: Selection, slow_hosts: Collection[str]) -> Selection:
    """The selection without collectives among more than two boards of these collections."""
    rows = selection.kernels
    if rows is None or not slow_hosts:
        return selection
    many = np.array([one.family == "communication" and one["num_gpus"] > 2 for one in rows.operators], dtype=np.bool_)
    slow = np.array([name in slow_hosts for name in rows.collections], dtype=np.bool_)
    return replace(selection, kernels=rows.select(~(many[rows.operator_index] & slow[rows.collection_index])))


def by_laboratory(selection: Selection, recipe: Recipe) -> Selection:
    """The selection with one collection for all files of a laboratory, and for its boards; rows that name their framework keep it."""
    folders = {Path(file).name: laboratory_of(file) for file in recipe.data}
    parts: dict[str, Any] = {}
    for rows in selection.tables:
        names = [OWN if name.startswith("GPU-") else folders.get(name, name) for name in rows.collections]
        unique = list(dict.fromkeys(names))
        index = np.array([unique.index(name) for name in names])[rows.collection_index]
        parts[kind_of(rows)] = replace(rows, collections=tuple(unique), collection_index=index)
    return replace(selection, **parts)


def laboratory_of(file: str) -> str:
    """The laboratory of a file below the data: its folder without a number."""
    return OWN if file.startswith("bundles/") else file.partition("/")[0].partition("-")[0]


def held_sites(rows: KernelRows) -> BoolArray:
    """The rows of a fifth of the sites, chosen by a digest, shape (n,)."""

    def held(operator: Operator) -> bool:
        sizes = [operator[name] for name in SITES[operator.family]] if operator.family in SITES else operator.shape
        text = ",".join(f"{size:.0f}" for size in (*sizes, 0.0))
        return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), 16) % 100 < 20

    chosen = np.array([held(operator) for operator in rows.operators], dtype=np.bool_)
    kinds = np.array([".".join(section_words(operator)) for operator in rows.operators])
    for kind in np.unique(kinds):
        chosen[kinds == kind] &= not chosen[kinds == kind].all()  # a kind with one site has no errors of unseen ones
    return chosen[rows.operator_index]


def card(bundle: Bundle, recipe: Recipe, laboratories: dict[str, Laboratory], size: int) -> str:
    """The card of a bundle, in Markdown."""
    parts = (
        [f"# {bundle.name}", "", f"Version {bundle.version}, {bundle.gpu.name}, {size / 1e3:.0f} kB, `{bundle.digest}`."],
        ["## Data", "", *_data_lines(bundle, recipe, laboratories)],
        ["## Errors of latency and power [%]", "", *_error_lines(bundle.errors)],
        ["## Measured and forecast", "", *(f"* {line}" for line in _origin_lines(bundle, recipe))],
        ["## Not for", "", *(f"* {line}" for line in recipe.not_for)],
        ["## Notes of the fit", "", *(f"* {line}" for line in _note_lines(bundle.notes, _tested(bundle)))],
    )
    return "\n\n".join("\n".join(part).rstrip() for part in parts if len(part) > 2 or part is parts[0]) + "\n"


SAID_ELSEWHERE: Final = ("as on ", "power as on ", "prior: ", "no clocks recorded", "residual tier thinned", "column '")
"""Beginnings of notes that other parts of a card, or bundles/README.md for all, say, or that matter to nobody else."""


POORLY: Final = " of rows left out of the fit is poorly described, the model may lack something: "


def _note_lines(notes: Sequence[str], tested: Collection[str]) -> list[str]:
    """Notes, those of several files that say the same as one; without kinds whose errors the card states."""
    files: dict[str, list[str]] = {}
    for note in notes:
        if POORLY in note:
            quantity, _, listed = note.partition(POORLY)
            kinds = [one for one in listed.split("), ") if ".".join(one.split()[:3]) not in tested]
            if kinds:
                files.setdefault(f"{quantity}{POORLY}{'), '.join(kinds).removesuffix(')')})", []).append("")
            continue
        name, _, text = note.partition(": ")
        if not note.startswith(SAID_ELSEWHERE) and not text.startswith(SAID_ELSEWHERE):
            files.setdefault(text or note, []).append(name if text else "")
    return [f"{', '.join(names)}: {text}" if any(names) else text for text, names in files.items()]


def _tested(bundle: Bundle) -> set[str]:
    """Kinds whose errors a card states."""
    return {".".join(filter(None, label_of(row)[1:])) for row in bundle.errors}


def _data_lines(bundle: Bundle, recipe: Recipe, laboratories: dict[str, Laboratory]) -> Iterator[str]:
    """A line for each laboratory: its files, and the rows of this GPU that the fit used of them."""
    folders = {Path(file).name: laboratory_of(file) for file in recipe.data}
    for lab in dict.fromkeys(folders.values()):
        files = [one for one in bundle.provenance.datasets if folders[one.name] == lab]
        refused: Counter[str] = Counter()
        for one in files:
            refused.update({reason: count for reason, count in one.rejected.items() if reason != OTHER_GPU})
        used, rejected = sum(one.used for one in files), ", ".join(f"{count:,} {reason}" for reason, count in refused.items())
        of = f" of {used + refused.total():,} ({rejected})" if refused else ""
        text = f"{laboratories[lab].name}: {laboratories[lab].what}. {laboratories[lab].licence}"
        yield f"* {text}. Rows used: {used:,}{of}, from {', '.join(one.name for one in files)}."


def _error_lines(errors: Sequence[HeldOut]) -> Iterator[str]:
    """The table of errors, aligned; with columns of power where a kind has any."""
    titles = ["kernels", "rows", "mean", "median", "p95", "bias", "inside"]
    table = [[*titles, "power:mean", "bias"] if any(row["power"] is not None for row in errors) else titles]
    for row in errors:
        latency, power = row["latency"], row["power"]
        assert latency is not None
        inside = "–" if row["coverage"] is None else f"{100 * row['coverage']:.0f}"
        figures = [f"{latency['mape']:.1f}", f"{latency['median']:.1f}", f"{latency['p95']:.0f}", f"{latency['bias']:+.1f}", inside]
        figures += [] if power is None else [f"{power['mape']:.1f}", f"{power['bias']:+.1f}"]
        table.append([".".join(filter(None, label_of(row)[1:])), f"{row['n']:,}", *figures])
    widths = [max(len(line[place]) for line in table if place < len(line)) for place in range(len(table[0]))]
    yield "```text"
    for kind, *figures in table:
        cells = (figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=False))
        yield "  ".join((kind.ljust(widths[0]), *cells))
    yield "```"


FEW_ROWS: Final = 50
"""A card names kinds that were fitted on fewer rows."""


def _origin_lines(bundle: Bundle, recipe: Recipe) -> Iterator[str]:
    priors = set(unfitted_groups(bundle, bundle.groups))
    kinds = [name for name in bundle.groups if name.count(".") < 3 and BY not in name and ".n" not in name and name not in priors]
    rows = {name: bundle.groups[name].rows for name in kinds}
    named = {(name.rpartition(".")[0], rows[name]) for name in kinds if name.count(".") == 2}  # family.operator.precision
    named |= {(name.rpartition(".")[0], count) for name, count in named}
    kinds = [name for name in kinds if (name, rows[name]) not in named]  # kinds whose rows a longer name has, too
    tested = _tested(bundle)
    kinds = [name for name in kinds if rows[name] < FEW_ROWS or not any(f"{one}.".startswith(f"{name}.") for one in tested)]
    lent = f" or as in {recipe.priors[0]}" if recipe.priors else ""
    few = "; on few rows, or without errors: " if kinds else ""
    yield f"Latency measured: the kinds above{few}{', '.join(f'`{name}`' for name in sorted(kinds))}."
    widest = [name for name in sorted(priors) if not any(name.startswith(f"{other}.") for other in priors)]
    yield f"Latency at priors{lent}: {', '.join(f'`{name}`' for name in widest) or 'none'}."
    power = bundle.power
    if power is None:
        yield "Power: none."
    elif any(row["power"] for row in bundle.errors):
        yield f"Power measured: {power.rows} rows; voltage exponent {power.voltage_exponent:.2f}."
    else:
        deviation = f"deviation {100 * bundle.uncertainty['power']['gpu']:.0f} % (1 σ)"
        yield f"**Power is a forecast**: energies of {', '.join(recipe.priors)} carried by the rules of `docs/model.md`; {deviation}."
    tables = {"Voltage": bundle.voltage, "Rest power": bundle.idle}
    if missing := [name for name, table in tables.items() if table is None]:
        yield f"{' and '.join(missing).capitalize()} over the clock: by rule, not measured."
    for name, table in tables.items():
        if table is not None:
            yield f"{name} over the clock: {table.source or 'measured'}."
    low, high = bundle.clocks_mhz
    yield f"Clocks: {low:g} to {high:g} MHz." if low < high else f"Clocks: {low:g} MHz alone; others are an extrapolation."
    yield f"Host's launch cost: {1e6 * bundle.host.launch_s:.0f} µs, {bundle.host.source}."


@click.command()
@click.argument("names", nargs=-1)
@click.option("--data", type=click.Path(path_type=Path, exists=True), default=ROOT.parent / "shared" / "data")
@click.option("--out", type=click.Path(exists=True, file_okay=False, path_type=Path), default=ROOT / "bundles")
@click.option("--cards", is_flag=True, help="Write the cards of the bundles that are there; fit nothing.")
def main(names: tuple[str, ...], data: Path, out: Path, cards: bool) -> None:
    """Fit the bundles NAME..., or all, and write their cards."""
    table = read_table()
    if unknown := set(names) - table.bundles.keys():
        raise click.UsageError(f"unknown bundles {', '.join(sorted(unknown))}; known: {', '.join(table.bundles)}")
    for name, recipe in table.bundles.items():
        path = out / f"{name}.json"
        if (not names or name in names) and (path.exists() or not cards):
            try:
                bundle = load_bundle(path) if cards else save_bundle(fitted(name, recipe, data, out), path)
            except (EstimatorError, FitterError) as error:
                raise click.ClickException(str(error)) from error
            text = card(bundle, recipe, table.laboratories, path.stat().st_size)
            path.with_suffix(".md").write_text(text, encoding="utf-8")
            click.echo(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
