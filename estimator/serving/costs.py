"""Costs of an engine's steps on one board at a few numbers of sequences, with their parts and errors: estimates of the one engine.

k numbers of sequences, c clocks.  A step that also reads a piece of a prompt costs more than one that only decodes; the difference is what
the prompt adds.  One step can also be a workload of its own: a pass over whole prompts, or a token of each running sequence.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from estimator.engine.board import Board
from estimator.engine.prediction import Prediction, predict
from estimator.model.coefficients import group_words
from estimator.model.power_limit import UNLIMITED_W
from estimator.questions.sweeping import Sweep, table
from estimator.serving.architecture import Architecture, Layout, read_architecture, read_config
from estimator.serving.engines import Engine, load_engine, waiting_power
from estimator.serving.steps import Step, cache_bytes, step_workload, weight_bytes
from estimator.serving.weights import Weights, read_weights
from estimator.tracing.models import USUAL_SEQUENCE
from estimator.transforms.variation import Variant
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import arrays, frozen
from estimator.vocabulary.workload import Footprint

PARTS: Final = ("products", "attention", "experts", "collectives", "small kernels")
PART_OF: Final = {"gemm": 0, "quantise": 0, "attention": 1, "mla": 1, "moe": 2, "communication": 3}
"""The part of each family of kernels; others are small kernels."""

SEQUENCES: Final = tuple(sorted({1} | {base << power for base in (2, 3) for power in range(12)}))
"""Numbers of sequences at which steps are estimated; costs between them are interpolated."""


LAG_S: Final = 0.1
"""Time that a board takes to lower its clock to its power limit [s] (assumed)."""


@frozen
class Served:
    """A model on a group of boards under an engine, and the lengths of its requests [token]."""

    architecture: Architecture
    weights: Weights
    layout: Layout
    engine: Engine
    prompt: int
    output: int

    @property
    def context(self) -> float:
        """Mean tokens to which a decoding sequence attends."""
        return self.prompt + self.output / 2


@frozen
class Costs:
    """Costs at numbers of sequences `at` (k,), of one board of a group on average.

    parts     time by PARTS (5, k, c) [s]
    joules    (k, c)
    time_ln, power_ln    half widths of 90 % intervals of ln(time) and ln(power): who serves is no laboratory of the tables
    """

    at: Array
    parts: Array
    joules: Array
    time_ln: Array
    power_ln: Array


@arrays
class StepCosts:
    """Costs of decoding steps and of what a prompt adds, and what is known about them.

    prompt          by the number of sequences beside it, from 0 on
    points          the estimates behind them, clocks vary fastest
    sm_clock_mhz    (c, k) actual clocks of decoding steps
    waiting_w       (c, k) power of a board that waits for its host; waiting_spread: relative half width of its 90 % interval
    rest_w          (c, k) power of a board at rest, of the same spread (assumed): some boards lower their clock between requests
    """

    decode: Costs
    prompt: Costs
    points: Sweep
    sm_clock_mhz: Array
    waiting_w: Array
    waiting_spread: float
    rest_w: Array


def nodes_of(least: float, most: float) -> tuple[int, ...]:
    """The SEQUENCES between which these numbers lie, and those between them."""
    return SEQUENCES[bisect_right(SEQUENCES, max(least, 1.0)) - 1 : bisect_left(SEQUENCES, most) + 1]


def step_costs(served: Served, board: Board, nodes: Sequence[int]) -> StepCosts:
    """Costs of steps of these numbers of sequences, each without the power limit but for prompts: these are within it from LAG_S on.

    Raises EstimatorError for a model that cannot be divided so.
    """
    engine, prompt = served.engine, served.prompt
    chunk = engine.chunk
    beside, decoding = (0, *nodes), len(nodes)
    ends = [min(start + chunk, prompt) for start in range(0, prompt, chunk)]
    # A step takes the prompts that come in during it: one alone would add a whole tile of rows, however few its own are.
    together = [min(max(one / (served.output - 1), 1.0), max(chunk / prompt, 1.0)) for one in beside]
    steps = [Step(sequences=one, context=served.context) for one in nodes]
    for end in ends:
        piece = ((end - 1) % chunk + 1, end)
        for one, count in zip(beside, together, strict=True):
            steps.append(Step(prompts=(piece,), together=count, sequences=one * engine.mixes, context=served.context))
    workloads = [step_workload(served.architecture, served.weights, served.layout, step, engine.library) for step in steps]
    prediction = predict(workloads, replace(board, held=board.held._replace(power_w=UNLIMITED_W)))
    costs, alone_s = _costs(prediction), prediction.latency_s[decoding :: len(beside)].sum(axis=0)
    if np.any(alone_s > LAG_S):
        late, limited = np.maximum(1.0 - LAG_S / alone_s, 0.0), _costs(predict(workloads, board))
        for name, values in costs.items():
            values[..., decoding:, :] += late * (limited[name] - values)[..., decoding:, :]
    decode = Costs(at=np.array(nodes, dtype=np.float64), **{name: values[..., :decoding, :] for name, values in costs.items()})
    clocks_mhz, waiting = prediction.sm_clock_mhz[:decoding].T, waiting_power(board.gpu.architecture)
    rest_w = board.tables.rest_w(clocks_mhz)
    return StepCosts(
        decode=decode,
        prompt=_added({name: values[..., decoding:, :] for name, values in costs.items()}, decode, np.array(together), engine.mixes),
        points=table([Variant(workload=workload) for workload in workloads], prediction),
        sm_clock_mhz=clocks_mhz,
        waiting_w=rest_w + waiting.share * np.maximum(board.limit_w - rest_w, 0.0),
        waiting_spread=waiting.spread,
        rest_w=rest_w,
    )


@np.errstate(all="ignore")
def _costs(prediction: Prediction) -> dict[str, Array]:
    """Fields of Costs of every workload of a prediction, (·, v, c)."""
    shape = prediction.latency_s.shape
    parts = np.zeros((len(PARTS), *shape))
    for i, latency_s in enumerate(prediction.latency_s):
        own, kinds = prediction.prepared.blocks_of(i)
        for kind, share in zip(kinds, prediction.shares[own], strict=True):
            part = PART_OF.get(group_words(kind.group or "")[0], len(PARTS) - 1)
            parts[part, i] += share * latency_s
    low, high = np.log(prediction.limits_elsewhere.latency_s)
    low_w, high_w = np.log(prediction.limits_elsewhere.power_w)
    joules = prediction.power_w * prediction.latency_s
    return {"parts": parts, "joules": joules, "time_ln": 0.5 * (high - low), "power_ln": 0.5 * (high_w - low_w)}


def _added(costs: dict[str, Array], decode: Costs, together: Array, mixes: bool) -> Costs:
    """What the pieces of a prompt add to steps of no and of `decode.at` sequences, which take `together` each; costs: of these steps, or,
    if the engine does not mix them, of steps of prompts alone.
    """
    found = {}
    for name, values in costs.items():
        each = values.reshape(*values.shape[:-2], -1, len(together), values.shape[-1])
        if name.endswith("_ln"):
            found[name] = each.mean(axis=-3)
            continue
        found[name] = each.sum(axis=-3)
        more = found[name][..., 1:, :] - mixes * each.shape[-3] * getattr(decode, name)
        found[name][..., 1:, :] = np.maximum(more, 0.0) / together[1:, None]
    return Costs(at=np.concatenate(([0.0], decode.at)), **found)


def is_served(model: str) -> bool:
    """Whether a model's name or configuration is one of an architecture that engines serve."""
    try:
        read_architecture(model)
    except WorkloadError:
        return False
    return True


def single_step(
    model: str,
    phase: str,
    *,
    batch: int = 1,
    sequence: int = 0,
    weights: str | None = None,
    kv: str | None = None,
    layout: Layout | None = None,
) -> Variant:
    """One step of a group of GPUs, as the usual engine launches it on each, without its host.

    phase: "decode", a token of each of `batch` sequences, which attends to `sequence` tokens, or "prefill", `batch` prompts of `sequence`
    tokens, 0: the usual number; weights, kv: as of `estimator.serving.answers.Serving`.

    Raises WorkloadError for a model that is not served, a layout that divides neither it nor the batch, and tokens beyond its context.
    """
    config, engine = read_config(model), load_engine()
    architecture, formats = read_architecture(config), read_weights(config, weights, kv)
    layout = layout or Layout()
    own, rest = divmod(batch, layout.copies)
    if rest:
        raise WorkloadError(f"{architecture.name}: {layout.copies} copies of the attention do not divide a batch of {batch}; change it")
    sequence = sequence or min(USUAL_SEQUENCE, architecture.longest or USUAL_SEQUENCE)
    decode = phase == "decode"
    step = Step(sequences=own, context=sequence) if decode else Step(prompts=((sequence, sequence),), together=own)
    workload = step_workload(architecture, formats, layout, step, engine.library)
    held = Footprint(
        weights_byte=weight_bytes(architecture, formats, layout),
        cache_byte=own * sequence * cache_bytes(architecture, formats, layout, context=sequence),
        passing_byte=engine.reserve_bytes,
    )
    name = f"{architecture.name}-{phase}-b{batch}-s{sequence}-{formats.name}-kv-{formats.cache}-serving"
    name += "".join(f"-{kind}{n}" for kind, n in (("tp", layout.tensor_parallel), ("ep", layout.expert_parallel)) if n > 1)
    told = f"kernels as {engine.label} launches them on each GPU, without its host (estimate llm has it)"
    return Variant(
        workload=replace(workload, name=name, notes=(told, *workload.notes), footprint=held),
        batch=batch,
        sequence=sequence,
        tokens=step.tokens * layout.copies,
    )
