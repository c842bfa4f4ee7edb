"""GPUs for people and programs: names, memory, power limit and power at rest, and the bundle that answers for each."""

import math
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from estimator.bundle.files import bundle_heads, load_bundle
from estimator.display.text import UNKNOWN, rows_table
from estimator.engine.board import board_tables
from estimator.uncertainty.forecast import forecast_std
from estimator.uncertainty.nearest import nearest_bundle
from estimator.uncertainty.validity import GIB
from estimator.vocabulary.quantities import NORMAL_90
from estimator.vocabulary.specifications import gpu_names, load_gpu
from estimator.vocabulary.values import frozen


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


def listed_gpus(given: Sequence[str]) -> Iterator[ListedGpu]:
    """The named GPUs, or all that have a shipped specification.  Raises SpecificationError and BundleError."""
    heads, loaded = bundle_heads(), cache(load_bundle)
    for gpu in map(load_gpu, given or gpu_names()):
        name = nearest_bundle(gpu, heads)
        fitted = heads[name].gpu
        own = fitted.name == gpu.name
        tables = board_tables(loaded(name), fitted if own else gpu)
        latency, power = (None if own else math.exp(NORMAL_90 * std) for std in forecast_std(fitted, gpu))
        yield ListedGpu(
            **{field: getattr(gpu, field) for field in ("name", "short_names", "memory", "power_limit_w", "asleep_w")},
            memory_bytes=gpu.dram_bytes,
            idle_power_w=float(tables.rest_w(np.array([gpu.sm_clock_max_mhz]))[0]),
            idle_power_from="table" if tables.idle_w else "rule",
            bundle=name,
            bundle_gpu=fitted.name,
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
