"""Bundles and GPUs for people and programs: their lists, and the card of one bundle: its data, its errors and its range."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.bundle.files import bundle_heads, bundle_names, bundle_path, load_bundle
from estimator.display.text import UNKNOWN, Document, document_text, fields_of, rows_table
from estimator.engine.board import board_tables
from estimator.uncertainty.forecast import forecast_of
from estimator.uncertainty.nearest import asked_gpu, known_gpu, nearest_bundle
from estimator.uncertainty.sources import unfitted_groups
from estimator.uncertainty.validity import GIB
from estimator.vocabulary.documents import printable
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.quantities import NORMAL_90
from estimator.vocabulary.regular_files import MOST_DATA_BYTES, read_regular
from estimator.vocabulary.specifications import gpu_names
from estimator.vocabulary.values import frozen

ROW: Final = ("name", "version", "gpu", "simulated", "families", "power", "clocks_mhz", "created_utc", "digest", "path", "error")


def listed_bundles(given: Sequence[str]) -> list[Document]:
    """A row of JSON data for every installed bundle and every bundle given by name or file.

    An unreadable one has an `error`.
    """
    return [dict.fromkeys(ROW) | _listed(name) for name in dict.fromkeys([*bundle_names(), *given])]


def _listed(name: str) -> Document:
    row: Document = {"name": name}
    try:
        path = bundle_path(name)
        row["path"] = str(path)
        bundle = load_bundle(name)
    except BundleError as error:
        return row | {"error": str(error)}
    return row | {
        "name": name if name in bundle_names() else bundle.name,  # a stored file may have another name
        "version": bundle.version,
        "gpu": bundle.gpu.name,
        "simulated": bundle.simulated,
        "families": sorted({key.partition(".")[0] for key in bundle.groups.keys() - unfitted_groups(bundle, bundle.groups)}),
        "power": bundle.power is not None,
        "clocks_mhz": list(bundle.clocks_mhz),
        "created_utc": bundle.provenance.created_utc,
        "digest": bundle.digest,
    }


def bundle_table(rows: Sequence[Document]) -> str:
    """A table of the readable bundles for people."""
    shown = [name for name in ROW if name not in ("created_utc", "digest", "path", "error")]
    readable = [{name: row[name] for name in shown} for row in rows if row["error"] is None]
    return rows_table(readable) if readable else ""


# Cards ----------------------------------------------------------------------------------------------------------------


def card_document(bundle: Bundle) -> Document:
    """The card as JSON data; errors in percent, ranges of shapes in the units of the workload file."""
    priors = set(unfitted_groups(bundle, bundle.groups))
    return {
        "name": bundle.name,
        "version": bundle.version,
        "digest": bundle.digest,
        "gpu": bundle.gpu.name,
        "simulated": bundle.simulated,
        "datasets": list(map(asdict, bundle.provenance.datasets)),
        "clocks_mhz": bundle.clocks_mhz,
        "errors": bundle.errors,
        "groups": {
            name: {"rows": group.rows, "from": "prior" if name in priors else "data", "seen": _seen(bundle, name)}
            for name, group in bundle.groups.items()
        },
        "notes": bundle.notes,
    }


def card_text(name: str) -> str:
    """The card for people: the file beside the bundle, if it has the bundle's digest, with ranges of shapes; else all of the JSON data."""
    bundle, path = load_bundle(name), bundle_path(name)
    card = card_document(bundle)
    with suppress(OSError, ValueError):
        text = read_regular(path.with_suffix(".md"), MOST_DATA_BYTES).decode()
        if bundle.digest in text:
            return "".join(f"{printable(line)}\n" for line in (*text.splitlines(), "")) + document_text({"groups": card["groups"]})
    return document_text(card)


def _seen(bundle: Bundle, group: str) -> dict[str, tuple[float, float]]:
    """Ranges of the fitted shapes of a group and its narrower groups."""
    found: dict[str, tuple[float, float]] = {}
    for name, ranges in bundle.domain.items():
        if name == group or name.startswith(f"{group}."):
            for field, (low, high) in ranges.items():
                least, most = found.get(field, (low, high))
                found[field] = min(low, least), max(high, most)
    return found


@frozen
class ListedGpu:
    """A GPU and the bundle that answers for it.

    idle_power_w            power at rest at the clock of the published peak rates, from a "table" or the usual "rule" (idle_power_from)
    asleep_w                power without a context, None if unknown
    bundle, bundle_gpu      name of the bundle, and the GPU that it was fitted on
    latency_90, power_90    factors within which 90 % of forecasts lie, apart from the bundle's own errors; None if it is the GPU's own
    """

    name: str
    short_names: tuple[str, ...]
    memory: str
    memory_bytes: float
    power_limit_w: float
    idle_power_w: float
    idle_power_from: str
    asleep_w: float | None
    bundle: str
    bundle_gpu: str
    latency_90: float | None
    power_90: float | None


def listed_gpus(given: Sequence[str], warn: Callable[[str], object]) -> Iterator[ListedGpu]:
    """The named GPUs, or all that have a name; `warn` as in `bundle_heads`.  Raises SpecificationError and BundleError."""
    heads, loaded = bundle_heads(warn), cache(load_bundle)
    for word in given or dict.fromkeys((*gpu_names(), *(head.gpu.name for head in heads.values()))):
        gpu = known_gpu(word)
        name = nearest_bundle(gpu, heads)
        bundle = loaded(name)
        board = asked_gpu(bundle, word) or bundle.gpu
        tables, forecast = board_tables(bundle, board), forecast_of(bundle, board, {})
        further = forecast.ln_std if forecast and any(forecast.ln_std) else ()  # an anchored bundle states its own errors
        latency, power = (math.exp(NORMAL_90 * std) for std in further) if further else (None, None)
        yield ListedGpu(
            **fields_of(gpu, ("name", "short_names", "memory", "power_limit_w", "asleep_w")),
            memory_bytes=gpu.dram_bytes,
            idle_power_w=float(tables.rest_w(np.array([gpu.sm_clock_max_mhz]))[0]),
            idle_power_from="table" if tables.idle_w else "rule",
            bundle=name,
            bundle_gpu=bundle.gpu.name,
            latency_90=latency,
            power_90=power,
        )


def gpu_table(gpus: Sequence[ListedGpu]) -> str:
    """A line for every GPU."""
    return rows_table(
        [
            {
                "name": one.name,
                "short names": one.short_names,
                "memory": f"{one.memory_bytes / GIB:.4g} GiB {one.memory}",
                "limit": f"{one.power_limit_w:g} W",
                "at rest": f"{one.idle_power_w:.0f} W ({one.idle_power_from})",
                "asleep": f"{one.asleep_w:g} W" if one.asleep_w else UNKNOWN,
                "bundle": f"forecast from {one.bundle_gpu}" if one.latency_90 else "own",
                "latency within": f"× {one.latency_90:.2f}" if one.latency_90 else "",
                "power within": f"× {one.power_90:.2f}" if one.power_90 else "",
            }
            for one in gpus
        ]
    )
