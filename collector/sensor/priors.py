"""What others published of a board's power sensor: priors, to be compared with and not to be corrected by.

A file of `configs/sensors` is one product; its entries are driver and query.  Doubts travel with the figures.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final

from collector.errors import SensorError
from collector.sensor.calibration import SensorCalibration
from collector.tables import TableReader
from estimator.resources import resource_folder, resource_names

CLASSES: Final = "classes"
"""The file that lists classes by architecture instead of a product."""
QUERIES: Final[Mapping[str, tuple[str, ...]]] = {
    "instant": ("power.draw.instant", "power.draw"),
    "average": ("power.draw.average", "power.draw"),
}
"""Queries of nvidia-smi that show a field, best first."""
ERA: Final = 530
"""Drivers before, of and after this release average `power.draw` differently on Ampere and Ada."""
PERIOD_TOLERANCE: Final = 0.05
"""Share by which a measured period may differ from a published one, which is a median of polls."""
VENDOR_WORDS: Final = frozenset({"nvidia", "geforce", "tesla", "quadro"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorPrior:
    """A sensor as published: `averaging` trailing-mean, low-pass or "window" (a boxcar was fitted, no other kernel tried).

    Figures are medians over `runs` runs; None where nothing is published.
    """

    driver: str
    query: str
    runs: int
    supported: bool = True
    update_period_s: float | None = None
    averaging: str | None = None
    transient: str | None = None
    window_s: float | None = None
    window_std_s: float | None = None
    rise_time_s: float | None = None
    gain: float | None = None
    offset_w: float | None = None
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductPriors:
    """A product's sensors; `products` are its names as drivers say them, `doubts` hold for all entries."""

    products: tuple[str, ...]
    architecture: str
    sensors: tuple[SensorPrior, ...]
    doubts: tuple[str, ...] = ()


@cache
def catalogue() -> tuple[ProductPriors, ...]:
    """All products that are known.  Raises SensorError for a file that cannot be used."""
    found = []
    for name in resource_names("sensors", ".toml"):
        if name == CLASSES:
            continue
        path = resource_folder("sensors") / f"{name}.toml"
        reader = TableReader(where=f"sensor priors {path}", error=SensorError)
        document = reader.read(path, "list of sensors")
        tables = document.pop("sensors", [])
        sensors = tuple(_with_texts(reader.build(SensorPrior, table, f"sensors[{index}]")) for index, table in enumerate(tables))
        found.append(_with_texts(reader.build(ProductPriors, document | {"sensors": sensors})))
    return tuple(found)


def _with_texts(entry: Any) -> Any:
    """Lists of texts as TOML gives them, made tuples."""
    lists = {item.name: tuple(getattr(entry, item.name)) for item in fields(entry) if item.name in ("doubts", "products")}
    return replace(entry, **lists)


def find_prior(product: str, driver: str, field: str) -> tuple[SensorPrior, tuple[str, ...]] | None:
    """The published sensor of a product with that driver, or else one of the same era, and all doubts about it.

    `field` is "instant" or "average", or a query of nvidia-smi.  None where nothing is published.
    """
    wanted = _words(product)
    for priors in catalogue():
        if wanted not in [_words(name) for name in priors.products]:
            continue
        for query in QUERIES.get(field, (field,)):
            entries = [entry for entry in priors.sensors if entry.query == query and entry.supported]
            near = [entry for entry in entries if entry.driver == driver] or [
                entry for entry in entries if _era(entry.driver) == _era(driver)
            ]
            if near:
                return near[0], (*near[0].doubts, *priors.doubts)
    return None


def compared(calibration: SensorCalibration, product: str) -> str:
    """What is published beside what was found, in one line; empty where nothing is."""
    found = find_prior(product, calibration.driver, calibration.field)
    if found is None:
        return ""
    prior, doubts = found
    parts = [f"period {prior.update_period_s * 1e3:.1f} ms"] if prior.update_period_s else []
    parts += [f"{prior.averaging} {prior.window_s * 1e3:.0f} ms"] if prior.averaging and prior.window_s else []
    parts += [f"gain {prior.gain:.3f}"] if prior.gain else []
    text = f"published for this board ({prior.query}, driver {prior.driver}, {prior.runs} run(s)): {', '.join(parts) or 'no figures'}"
    period = calibration.update_period_s
    if period and prior.update_period_s and abs(period / prior.update_period_s - 1.0) > PERIOD_TOLERANCE:
        text += f"; this period differs by {period / prior.update_period_s - 1.0:+.0%}"
    return f"{text}; doubts: {'; '.join(doubts)}" if doubts else text


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.lower())) - VENDOR_WORDS


def _era(driver: str) -> int:
    """-1 before driver 530, 0 for it, 1 after; 1 where the driver is no number."""
    release = re.search(r"(\d+)\.", driver)
    number = int(release.group(1)) if release else ERA + 1
    return (number > ERA) - (number < ERA)
