"""Block-count models as a SimGrid platform: for each kernel a host with one core, for each clock a p-state with the powers of host-energy.

A host's unit of work is a flop if the kernel's flops are known, else a block.  Whole rounds run at the round's power.  SimGrid's power
depends only on the load of the core, so a partial round has the same power for its duration.
Source: Boughzala et al. (SBAC-PAD 2020), section V; properties of the plugin: SimGrid's documentation, "host energy".
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final
from xml.sax.saxutils import quoteattr

from estimator.blocks.model import BlockModel, checked_blocks
from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.values import frozen

HEAD: Final = '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n<platform version="4.1">\n'
ZONE: Final = "gpus"


@frozen
class SimulatedRun:
    """A kernel in SimGrid: a host and the amounts of work to execute on it one after the other.

    `launch`, `whole` and `rest` are amounts in the host's units: for the launch, for each of `rounds` whole rounds, and for the partial
    round (0: none); the host's `speed` is units a second.
    """

    host: str
    pstate: int
    speed: float
    launch: float
    whole: float
    rounds: int
    rest: float
    latency_s: float
    energy_j: float


def platform_xml(models: Iterable[BlockModel]) -> str:
    """The platform file.  Raises EstimatorError for models without power, two models of a kernel at one clock, or no models."""
    hosts = _hosts(models)
    lines = []
    for name, states in hosts.items():
        speeds = ",".join(f"{_speed(model)}f" for model in states)
        watts = ", ".join(f"{model.static_w}:{model.round_power_w()}" for model in states)
        lines += [
            f'    <host id={quoteattr(name)} speed={quoteattr(speeds)} core="1">',
            f'      <prop id="wattage_per_state" value={quoteattr(watts)}/>',
            '      <prop id="wattage_off" value="0"/>',
            "    </host>",
        ]
    return HEAD + f'  <zone id="{ZONE}" routing="Full">\n' + "\n".join(lines) + "\n  </zone>\n</platform>\n"


def simulated_run(model: BlockModel, blocks: int, models: Sequence[BlockModel] = ()) -> SimulatedRun:
    """The work of a grid on the host of `platform_xml(models)`, and the time and energy that the plugin computes: Σ P T.

    models: all models of the platform, if it has more than this one.  Raises EstimatorError for a grid that cannot be launched, and like
    `platform_xml`.
    """
    checked_blocks(blocks)
    states = _hosts(models or (model,))[host_name(model)]
    speed = _speed(model)
    rounds, rest = divmod(int(blocks), model.resident_blocks)
    launch, whole, left = (span * speed for span in (float(model.times_s[0]), model.round_s(), model.rest_s(rest) if rest else 0.0))
    latency_s = math.fsum((launch, rounds * whole, left)) / speed
    return SimulatedRun(
        host=host_name(model),
        pstate=states.index(model),
        speed=speed,
        launch=launch,
        whole=whole,
        rounds=rounds,
        rest=left,
        latency_s=latency_s,
        energy_j=latency_s * model.round_power_w(),
    )


def host_name(model: BlockModel) -> str:
    """The host of a kernel with one block size."""
    return f"{model.kernel}/{model.block_threads}"


def _hosts(models: Iterable[BlockModel]) -> Mapping[str, list[BlockModel]]:
    """Models by host, fastest clock first, in the order of p-states."""
    ordered = sorted(models, key=lambda model: (host_name(model), -model.sm_clock_mhz if math.isfinite(model.sm_clock_mhz) else 0.0))
    if not ordered:
        raise EstimatorError("no block-count model to write a platform of")
    hosts = {name: list(own) for name, own in groupby(ordered, key=host_name)}
    for name, states in hosts.items():
        if lacking := [model for model in states if not model.has_power]:
            raise EstimatorError(f"{host_name(lacking[0])} was measured without power; a platform needs it")
        clocks = [model.sm_clock_mhz for model in states]
        if len({clock for clock in clocks if math.isfinite(clock)}) < len(clocks) and len(clocks) > 1:
            raise EstimatorError(f"{name} has two models at one clock, or one without a clock; choose one")
    return hosts


def _speed(model: BlockModel) -> float:
    """Units of work a second in whole rounds."""
    unit = model.flop_per_block if math.isfinite(model.flop_per_block) else 1.0
    return unit * model.resident_blocks / model.round_s()
