"""Keeping a board within its band of temperature: warm before the first kernel, neither cold nor hot before any other."""

from typing import Final

from collector.bench import Bench
from collector.campaigns.files import CampaignSpec
from collector.campaigns.measurement import ranged_launch_s
from collector.sensing.live_load import load_operator
from microbench.sizing import launches_for

RANGING_S: Final = 0.05
WARMING_STEP_S: Final = 5.0
"""Load between two looks at the temperature."""
COOLING_STEP_S: Final = 2.0
"""Rest between two looks at the temperature."""
MARGIN_K: Final = 3.0
"""A board that left its band is brought back so far into it, and may fall so far below its lower end before it is warmed."""


def warm_up(bench: Bench, spec: CampaignSpec) -> float:
    """Load until the board is as warm as a campaign keeps it; the temperature then, nan where it cannot be read [°C]."""
    if spec.warmup_s > 0.0 or spec.warm_to_c > 0.0:
        loaded_s = _load(bench, spec.warmup_s) if spec.warmup_s > 0.0 else 0.0
        while bench.gpu.state().temperature_c < spec.warm_to_c and loaded_s < spec.warmup_longest_s:
            loaded_s += _load(bench, WARMING_STEP_S)
    return bench.gpu.state().temperature_c


def keep_in_band(bench: Bench, spec: CampaignSpec) -> float:
    """Rest where the board is hotter than a campaign allows, load where it is colder than it shall be; the time that took [s].

    What cannot be reached in the campaign's longest time is left: the row that follows then carries its flag.
    """
    temperature_c = bench.gpu.state().temperature_c
    highest_c, spent_s = spec.measurement.max_temperature_c, 0.0
    if temperature_c > highest_c:
        while bench.gpu.state().temperature_c > highest_c - MARGIN_K and spent_s < spec.cool_longest_s:
            bench.clock.wait(COOLING_STEP_S)
            spent_s += COOLING_STEP_S
    elif temperature_c < spec.warm_to_c - MARGIN_K:
        while bench.gpu.state().temperature_c < spec.warm_to_c and spent_s < spec.warmup_longest_s:
            spent_s += _load(bench, WARMING_STEP_S)
    return spent_s


def _load(bench: Bench, seconds: float) -> float:
    """Load for so long; the same time."""
    prepared = bench.runner.prepare(load_operator(bench))
    launch_s = ranged_launch_s(bench, prepared, RANGING_S)
    bench.runner.run(prepared, launches_for(seconds, launch_s))
    return seconds
