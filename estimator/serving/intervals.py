"""Steady states as expected and with each source of error moved, and the 90 % intervals that follow.

Sources are independent.  Each is moved by the half width of its own 90 % interval, up and down, as effects need not be symmetric;
the schedule is solved again, and the changes of the logarithms are joined:

    kernels     the bundle's error of a step's time, with that of kernels of another library than the engine's
    host        the engine's constants (`HostTime.spread`)
    schedule    what a prompt adds (`QUEUE_SPREAD`)
    power       the bundle's error of a step's power
    waiting     power of boards that wait for their host (`Waiting`)
    limit       the share of the limit that a throttled board holds

Axes: s = 1 + twice the number of sources, c clocks, n loads.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from estimator.serving.costs import PARTS, Costs, Served, StepCosts
from estimator.serving.schedule import Cycle, Host, Load, StepCost, at_rate, closed_loop
from estimator.vocabulary.quantities import Array

SOURCES: Final = ("kernels", "host", "schedule", "power", "waiting", "limit")

QUEUE_SPREAD: Final = 0.15
"""Relative half width of the 90 % interval of the time that a prompt adds to the steps of others [1]: which pieces run beside which
sequences is the scheduler's choice.  Runs on one GPU, or of Qwen3-32B, to which hosts were fitted err by 4 to 11 % of the prompts' time."""

Columns = dict[str, Array]
"""Values of shape (c, n) by name."""


def steady_states(
    served: Served, costs: StepCosts, slots: Array, rate: float | None, settled: Callable[[Cycle], Cycle] = lambda cycle: cycle
) -> Cycle:
    """One copy's states with `slots` (n,) of each, or at a rate of requests with up to `slots`; shapes (s, c, n).

    settled: gives a state within the power limit (`at_rate`).
    """
    host, boards = served.engine.host, float(served.layout.tensor_parallel)
    moved, watts = moves(host=host.spread), moves(waiting=costs.waiting_spread)
    at = costs.decode.at
    decode, prompt = _moved(costs.decode, boards, 0.0), _moved(costs.prompt, boards, QUEUE_SPREAD)

    def cost(at: Array, tables: StepCost, sequences: Array) -> StepCost:
        return StepCost(*(interpolated(at, table, sequences) for table in tables))

    all_slots = np.broadcast_to(slots, (len(moved), len(costs.waiting_w), len(slots)))
    times = (
        host.step_s + host.rank_s * (boards - 1.0),
        host.sequence_s,
        host.request_s,
        host.overlapped_step_s,
        host.overlapped_sequence_s,
        served.architecture.layers * host.overlapped_layer_s,
    )
    load = Load(
        output=served.output,
        chunks=served.prompt / served.engine.chunk,
        host=Host(*(seconds * moved for seconds in times)),
        queued=served.engine.queued,
        most=served.engine.chunk / served.prompt if served.engine.mixes else np.inf,
        waiting_w=boards * interpolated(at, costs.waiting_w, all_slots[0]) * watts,
        rest_w=boards * interpolated(at, costs.rest_w, all_slots[0]) * watts,
        decode=lambda sequences: cost(at, decode, sequences),
        prompt=lambda sequences: cost(costs.prompt.at, prompt, sequences - 1.0),
        alone=StepCost(prompt.seconds[..., :1], prompt.joules[..., :1]),
    )
    return closed_loop(load, all_slots if rate is None else at_rate(load, rate, all_slots[:, :1], settled))


def _moved(costs: Costs, boards: float, queue: float) -> StepCost:
    """Costs of a group of boards, shapes (s, c, k); queue: half width of the schedule's source."""
    seconds = costs.parts.sum(axis=0)
    factor = moves(kernels=np.expm1(costs.time_ln), schedule=queue)
    joules = factor * moves(power=np.expm1(costs.power_ln)) * costs.joules * boards
    return StepCost(np.moveaxis(factor * seconds, 1, -1), np.moveaxis(joules, 1, -1))


def moves(**spreads: Array | float) -> Array:
    """Factors of a quantity with spreads by source: (s, …), as expected, with each source moved up, and down."""
    nothing = np.zeros(np.broadcast_shapes((1, 1), *map(np.shape, spreads.values())))
    ln = np.log1p(np.stack([nothing + spreads.get(source, 0.0) for source in SOURCES]))
    factors: Array = np.exp(np.concatenate([nothing[None], ln, -ln]))
    return factors


def interpolated(at: Array, values: Array, asked: Array) -> Array:
    """Values (…, k) at `at` (k,) between these, at places (…, n); a single value holds everywhere."""
    if len(at) == 1:
        return values + 0.0 * asked
    left = np.clip(np.searchsorted(at, asked, side="right") - 1, 0, len(at) - 2)
    own, following = np.take_along_axis(values, left, axis=-1), np.take_along_axis(values, left + 1, axis=-1)
    return own + (asked - at[left]) / (at[left + 1] - at[left]) * (following - own)


@np.errstate(all="ignore")
def measures(cycle: Cycle, copies: int, asked: Array, most_w: float) -> Columns:
    """Values of all copies with limits of their intervals, `…_low` and `…_high`; asked (n,): requests in flight of a copy, nan at a rate.

    Requests beyond those that run wait for a slot, which adds to the time to the first token.  Copies without a request keep step with the
    others.  most_w: what the boards of a copy hold.  At a rate no more tokens leave than are requested.
    """
    used = np.fmin(asked, 1.0)
    queue_s = np.fmax(asked / cycle.running - 1.0, 0.0) * cycle.slot_s
    found = {
        "ttft_s": cycle.ttft_s,
        "tpot_s": cycle.tpot_s,
        "slot_s": cycle.slot_s + queue_s,
        "tokens_per_s": cycle.tokens_per_s * copies * used,
        "power_w": cycle.power_w * copies,
        "energy_per_token_j": cycle.power_w / cycle.tokens_per_s / used,
    }
    latest = _limits(cycle.ttft_most_s + queue_s)[1]
    columns: Columns = {}
    for name, values in found.items():
        columns[name] = values[0]
        columns[f"{name}_low"], columns[f"{name}_high"] = _limits(values)
    high_w = columns["power_w_high"]
    return {
        **columns,
        "tokens_per_s_high": np.where(np.isnan(asked), columns["tokens_per_s"], columns["tokens_per_s_high"]),
        "power_w_high": np.where(columns["power_w"] <= most_w * copies, np.minimum(high_w, most_w * copies), high_w),
        "ttft_s_high": latest,
        "ttft_loaded_s": (cycle.ttft_loaded_s + queue_s)[0],
        "prompt_energy_j": cycle.prompt_j[0] / used,
        "output_energy_j": cycle.output_j[0] / used,
        "running": cycle.running[0] * copies * used,
        "busy": 1.0 - cycle.waiting_s[0] / (cycle.decode_s[0] + cycle.prompt_s[0] + cycle.waiting_s[0]),
    }


def _limits(values: Array) -> Array:
    """Limits (2, c, n) of 90 % intervals from values (s, c, n)."""
    change = np.log(values[1:] / values[0]).reshape(2, -1, *values.shape[1:])
    lower, upper = (np.linalg.norm(one, axis=0) for one in (np.minimum(change.min(axis=0), 0.0), np.maximum(change.max(axis=0), 0.0)))
    limits: Array = values[0] * np.exp(np.stack([-lower, upper]))
    return limits


@np.errstate(all="ignore")
def shares(cycle: Cycle, costs: StepCosts) -> Columns:
    """Shares of the time: PARTS of all steps, "waiting", and beside them "prompts", their time that prompts add; and `sm_clock_mhz`."""
    running = np.maximum(cycle.running[0], 1.0)
    decode_s, prompt_s, waiting_s = (part[0] for part in (cycle.decode_s, cycle.prompt_s, cycle.waiting_s))
    total = decode_s + prompt_s + waiting_s
    found: dict[str, tuple[Array, Array]] = {}
    for name, in_decode, in_prompt in zip(PARTS, costs.decode.parts, costs.prompt.parts, strict=True):
        others = (running - 1.0) * interpolated(costs.prompt.at, in_prompt.T, running - 1.0)
        found[name] = interpolated(costs.decode.at, in_decode.T, running), in_prompt.T[:, :1] + others
    sums = [sum(pair[i] for pair in found.values()) for i in (0, 1)]
    return {
        **{name: (decode_s * decode / sums[0] + prompt_s * prompt / sums[1]) / total for name, (decode, prompt) in found.items()},
        "waiting": waiting_s / total,
        "prompts": prompt_s / total,
        "sm_clock_mhz": interpolated(costs.decode.at, costs.sm_clock_mhz, running),
    }
