"""From the costs of steps to those of requests: continuous batching in a steady state, as equations.

Requests of equal lengths run in b slots; a slot takes the next request when its last token is out.  While a slot makes the n = output − 1
tokens that follow the first, every slot turns over once, so b prompts come in:

    boards  = n · d + a + (b − 1) · p; d: a decoding step, a: the step of the own prompt, p: what another one adds
    beside  = o0 + o1 · b: time of the host while the boards compute a step; op more in each of the s steps with prompts,
              s = max(min(n, b), b · chunks).  Prompts share a step where they outnumber the steps; long ones need several
    first   what the host still does for the step of the own prompt when the boards are ready = max(op − a, 0)
    late    time that the boards wait for the host.  Of the n decoding steps r = min(n, s) take prompts too, n − r take none
            = (n − r) · max(beside − d, 0) + max(r · (beside − d) + s · op − a − (b − 1) · p − first, 0)
    slot    time that a request holds its slot = h0 + n · (h0 + h1 · b) + b · hr + boards + first + late; h: the host's time in which
            boards wait
    pace    time of a decoding step with the host = h0 + h1 · b + d + late / n
    tokens/s = b · output / slot;    time per output token = pace + min((1 − q) · (b − 1) / n, most) · (p + hr)
    energy of a slot's time = n · E(d) + E(a) + (b − 1) · E(p) + waiting time · waiting power

A slot waits for the prompts of the others, a share q of that before its own first token, and what exceeds the `most` prompts for which
each step has room.  That token takes its own prompt in an empty engine, and b prompts more if all slots turn over at once.
At a rate λ of requests, b = λ · slot(b) run on average; below one, the boards rest between requests.
Arrays have one shape, or broadcast to it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from estimator.vocabulary.quantities import TINY, Array, BoolArray
from estimator.vocabulary.values import frozen

HALVINGS: Final = 50
"""Bisections of an interval of sequences: the result is as exact as a float."""

RUNG: Final = 1.2
RUNGS: Final = 45
"""Step of a ladder of numbers of sequences, fine enough for edges of tiles (assumed), and its length: down to a three-thousandth."""


class StepCost(NamedTuple):
    """Time of a step on the boards [s], and their energy together [J]."""

    seconds: Array
    joules: Array


class Host(NamedTuple):
    """Time of the host [s]: of a step, of each sequence in it, of each request; and while boards compute, also of a step with prompts."""

    step_s: Array
    sequence_s: Array
    request_s: Array
    overlapped_step_s: Array | float = 0.0
    overlapped_sequence_s: Array | float = 0.0
    overlapped_prompt_s: Array | float = 0.0


CostOf = Callable[[Array], StepCost]
"""A cost at numbers of sequences."""


@frozen
class Load:
    """Requests of one length on an engine.

    output, chunks   tokens of a request, 2 or more; steps that a prompt fills, less than one for a short one
    host, queued     its time; q
    most             prompts for which a step beside running sequences has room; inf if these wait
    waiting_w        power of all boards while they wait for the host [W]; rest_w: between requests
    decode, prompt   costs of a decoding step of b sequences, and of what one prompt adds to steps of b sequences
    alone            cost of a prompt in an empty engine
    """

    output: int
    chunks: float
    host: Host
    queued: float
    most: float
    waiting_w: Array
    rest_w: Array
    decode: CostOf
    prompt: CostOf
    alone: StepCost


@frozen
class Cycle:
    """A steady state.

    running                sequences on average
    slot_s                 time that a request holds its slot
    tpot_s                 time per output token after the first
    ttft_s                 time to the first token in an empty engine
    ttft_loaded_s, ttft_most_s   on average under load, and where all slots turn over at once
    power_w                of all boards
    prompt_j, output_j     energy of a request's prompt, and of its output with all waiting
    decode_s, prompt_s, waiting_s   parts of a slot's time
    """

    running: Array
    slot_s: Array
    tpot_s: Array
    ttft_s: Array
    ttft_loaded_s: Array
    ttft_most_s: Array
    tokens_per_s: Array
    power_w: Array
    prompt_j: Array
    output_j: Array
    decode_s: Array
    prompt_s: Array
    waiting_s: Array


def closed_loop(load: Load, running: Array) -> Cycle:
    """The steady state in which so many sequences run on average; below one, the boards rest between requests."""
    slots, busy = np.maximum(running, 1.0), np.minimum(running, 1.0)
    others = slots - 1.0  # whose prompts come beside the own one
    steps, decode, prompt, host = load.output - 1, load.decode(slots), load.prompt(slots), load.host
    request_s, token_s = host.request_s, decode.seconds
    decode_s = steps * token_s
    unhidden_s = np.maximum(host.overlapped_prompt_s - load.alone.seconds, 0.0)
    first_s = host.step_s + unhidden_s
    prompt_s = load.alone.seconds + others * prompt.seconds
    with_prompts = np.maximum(np.minimum(steps, slots), slots * load.chunks)
    mixed, over_s = np.minimum(steps, with_prompts), host.overlapped_step_s + host.overlapped_sequence_s * slots - token_s
    late = np.maximum(mixed * over_s + with_prompts * host.overlapped_prompt_s - prompt_s - unhidden_s, 0.0)
    late += (steps - mixed) * np.maximum(over_s, 0.0)
    own = host.step_s + host.sequence_s * slots + late / steps
    pace = token_s + own
    each = prompt.seconds + request_s
    between = np.minimum((1.0 - load.queued) * others, load.most * steps)
    waiting_s = steps * own + first_s + slots * request_s
    slot_s = decode_s + prompt_s + waiting_s
    between_s = (1.0 / np.maximum(busy, TINY) - 1.0) * slot_s
    prompt_j = (load.alone.joules + others * prompt.joules + (first_s + slots * request_s) * load.waiting_w) / slots
    output_j = steps * (decode.joules + own * load.waiting_w) / slots
    ttft_s = load.alone.seconds + first_s + request_s + 0.0 * slots
    return Cycle(
        running=running + 0.0 * slot_s,
        slot_s=slot_s,
        tpot_s=pace + between / steps * each,
        ttft_s=ttft_s,
        ttft_loaded_s=ttft_s + (others - between) * each,
        ttft_most_s=ttft_s + others * each,
        tokens_per_s=busy * slots * load.output / slot_s,
        power_w=busy * (prompt_j + output_j) * slots / slot_s + (1.0 - busy) * load.rest_w,
        prompt_j=prompt_j,
        output_j=output_j + between_s * load.rest_w,
        decode_s=decode_s,
        prompt_s=prompt_s,
        waiting_s=waiting_s + between_s,
    )


def at_rate(load: Load, requests_per_s: float, most: Array, settled: Callable[[Cycle], Cycle]) -> Array:
    """Mean number of sequences that run at a rate of requests, at most `most`, which memory holds.

    Where several numbers keep up with the rate it is the least one: more sequences can take longer each than they gain, at edges of tiles.
    settled: gives a steady state within the power limit.
    """

    def enough(slots: Array) -> BoolArray:
        return slots >= requests_per_s * settled(closed_loop(load, slots)).slot_s

    high = most
    for rung in range(1, RUNGS):
        lower = most * RUNG**-rung
        high = np.where(enough(lower), lower, high)
    low = np.where(enough(high / RUNG), 0.0, high / RUNG)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        found = enough(middle)
        low, high = np.where(found, low, middle), np.where(found, middle, high)
    return high
