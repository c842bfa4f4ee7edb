"""What a served model costs: times of a request, tokens, power and energy, with the limits of 90 % intervals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from math import exp, floor, inf, log10, nan
from pathlib import Path
from typing import Final, Unpack, get_args

import numpy as np

from estimator.bundle.content import Bundle
from estimator.engine.board import Board, Settings, open_board
from estimator.model.coefficients import NODE_GPUS
from estimator.model.power_limit import LIMIT_TOLERANCE
from estimator.serving.architecture import Layout, read_architecture, read_config
from estimator.serving.costs import SEQUENCES, Served, StepCosts, nodes_of
from estimator.serving.engines import Engine, load_engine
from estimator.serving.intervals import measures
from estimator.serving.limit import settled_states
from estimator.serving.steps import cache_bytes, weight_bytes
from estimator.serving.weights import read_weights
from estimator.tracing.models import WIDENED, Fields
from estimator.uncertainty.validity import GIB, Validity, why_no_time
from estimator.vocabulary.errors import EstimatorError, OperatingPointError, WorkloadError, real, require
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import NORMAL_90
from estimator.vocabulary.values import frozen

BUSY_ENOUGH: Final = 0.6
"""Share of the time that boards compute, below which a note says that the host sets the pace [1]."""

FASTEST_PCIE: Final = 6.4e10
"""Rate of the fastest link by PCIe, 5.0 x16, in one direction [byte/s]."""

ROUNDING: Final = 1e-6
"""Relative difference that is a rounding error."""

NEAR_OVERLOAD: Final = "within its interval this rate overloads: then requests pile up, and the upper limits of times do not hold"


@frozen
class Serving:
    """Requests to a model that is served.

    model            config.json, its folder, the name of a shipped model, or the config itself
    prompt, output   tokens of a request; output: 2 or more
    batch, rate      requests in flight at any time, or requests per second: one of the two
    tensor_parallel, expert_parallel   boards among which every layer, and the experts, are divided
    weights, kv      formats of the weights and of the cache; None: as the config says
    engine           "vllm", "vllm-0.12", …, a TOML file, or an Engine; None: not stated
    """

    model: str | Path | Fields
    prompt: int
    output: int
    batch: int | None = None
    rate: float | None = None
    tensor_parallel: int = 1
    expert_parallel: int = 1
    weights: str | None = None
    kv: str | None = None
    engine: str | Path | Engine | None = None

    @property
    def formats(self) -> tuple[str, ...]:
        """Number formats of the products of layers, for the choice of a bundle.  Raises WorkloadError."""
        config = read_config(self.model)
        read_architecture(config)  # what is not served says so before it is asked for its formats
        form = read_weights(config, self.weights, self.kv).layer
        return ("int4_wo" if form == WIDENED and (self.batch or 1) == 1 else form,)  # a single row: `widened`


@frozen
class Memory:
    """Memory of one board [byte]: weights, reserve, cache of a token, what is left for caches; sequences of mean length that these hold."""

    weights_byte: float
    reserve_byte: float
    cache_per_token_byte: float
    free_byte: float
    sequences: int


@frozen
class ServedEstimate:
    """A served model at one load and clock; values are nan where `state` says why there are none.

    gpus              boards of the group; power_w and energy_per_token_j are those of all, an output token's
    ttft_s            time to the first token in an empty engine at this load's clock; ttft_s_high: where all requests in flight come at
                      once; ttft_loaded_s: on average under load, within a factor of two
    tpot_s            time per output token after the first; slot_s: time of a request under load
    tokens_per_s      output tokens of all requests
    prompt_energy_j, output_energy_j   of a request: what its prompt adds, and the rest with all waiting
    running           sequences on average; busy: share of the time that the boards compute
    parts             shares of the time by kind of kernel, and "waiting"; beside them "prompts": what prompts add to the steps
    validity          as of an Estimate; None without values
    """

    model: str
    bundle: str
    gpu: str
    gpus: int
    engine: str
    weights: str
    kv: str
    prompt: int
    output: int
    batch: int | None
    rate: float | None
    tensor_parallel: int
    expert_parallel: int
    asked_clock_mhz: float
    sm_clock_mhz: float
    memory: Memory
    state: str = ""
    validity: Validity | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    ttft_s: float = nan
    ttft_s_low: float = nan
    ttft_s_high: float = nan
    ttft_loaded_s: float = nan
    tpot_s: float = nan
    tpot_s_low: float = nan
    tpot_s_high: float = nan
    slot_s: float = nan
    slot_s_low: float = nan
    slot_s_high: float = nan
    tokens_per_s: float = nan
    tokens_per_s_low: float = nan
    tokens_per_s_high: float = nan
    power_w: float = nan
    power_w_low: float = nan
    power_w_high: float = nan
    energy_per_token_j: float = nan
    energy_per_token_j_low: float = nan
    energy_per_token_j_high: float = nan
    prompt_energy_j: float = nan
    output_energy_j: float = nan
    running: float = nan
    busy: float = nan


def serve_llm(serving: Serving, bundle: Bundle, **settings: Unpack[Settings]) -> ServedEstimate:
    """A served model on boards of a bundle, or of another `gpu`; settings as of `estimate`, one clock.

    Raises EstimatorError for a model, a load or a layout that is impossible.
    """
    require(serving, Serving, "serving", "a Serving")
    board = open_board(bundle, **settings)
    if len(board.asked_mhz) != 1:
        raise OperatingPointError(f"{len(board.asked_mhz)} clocks at once; name one")
    return serve_many(serving, board, () if serving.batch is None else (serving.batch,))[0]


def serve_many(serving: Serving, board: Board, batches: Sequence[int]) -> list[ServedEstimate]:
    """Answers at these numbers of requests in flight, or without them at the rate, and at all clocks of a board; clocks vary fastest.

    Raises EstimatorError like `serve_llm`.
    """
    served = _served(serving, board.gpu, batches)
    memory = _memory(served, board)
    sixteen = served.weights.sixteen if board.gpu.on_tensor_cores("bf16") else "fp16"
    common = {
        "model": served.architecture.name,
        "bundle": f"{board.bundle.name} {board.bundle.version}",
        "gpu": board.gpu.name,
        "gpus": served.layout.gpus,
        "engine": served.engine.label,
        "weights": served.weights.name.replace("bf16", sixteen),
        "kv": served.weights.cache.replace("bf16", sixteen),
        "memory": memory,
        **{name: getattr(serving, name) for name in ("prompt", "output", "rate", "tensor_parallel", "expert_parallel")},
    }
    points = [(i, batch, clock, mhz) for i, batch in enumerate(batches or (None,)) for clock, mhz in enumerate(board.asked_mhz.tolist())]
    copies, held_w = served.layout.copies, board.held.power_w * served.layout.tensor_parallel
    asked = np.array(batches or (nan,)) / copies
    slots = np.fmax(np.fmin(asked, min(memory.sequences, SEQUENCES[-1])), 1.0)
    rate, nodes = serving.rate and serving.rate / copies, nodes_of(0.0 if serving.rate else slots.min() - 1.0, slots.max())
    costs, place, cycle, parts = settled_states(served, board, nodes, slots, rate)
    if not np.all(np.isfinite(cycle.slot_s[0])):
        reason = why_no_time([line for _, line in costs.points.warnings])
        raise OperatingPointError(f"{served.architecture.name} has no finite time on {board.gpu.name}: {reason}")
    if not memory.sequences:
        state = f"{_too_large(served, board, memory)}; {_remedy(serving, board, batches[:1])}"
        return [
            ServedEstimate(**common, batch=batch, asked_clock_mhz=mhz, sm_clock_mhz=mhz, state=state, warnings=(state,))
            for _, batch, _, mhz in points
        ]
    above = cycle.power_w[0] > LIMIT_TOLERANCE * held_w
    clocks_mhz, columns = parts.pop("sm_clock_mhz"), measures(cycle, copies, asked, held_w * exp(NORMAL_90 * board.held.ln_std))
    found, remarks = [], cache(_remarks)
    for i, batch, clock, mhz in points:
        values = {name: one[clock, i].item() for name, one in columns.items()}
        state, near = (_overload(serving, values[name]) for name in ("tokens_per_s", "tokens_per_s_low"))
        told = [state] if state else [_crowded(batch, values["running"], memory), NEAR_OVERLOAD if near else ""]
        step = int(np.searchsorted(costs.decode.at, values["running"] / copies * (1.0 - ROUNDING)))
        settled_mhz = clocks_mhz[clock, i].item()
        validity, warnings, notes = remarks(costs, min(step, len(costs.decode.at) - 1), place[clock], settled_mhz, above[clock, i])
        unmeasured = served.layout.gpus > NODE_GPUS or served.architecture.scan
        values["validity"] = "extrapolated" if validity == "measured" and unmeasured else validity
        found.append(
            ServedEstimate(
                **common,
                batch=batch,
                asked_clock_mhz=mhz,
                sm_clock_mhz=settled_mhz,
                state=state,
                warnings=(*filter(None, told), *warnings),
                notes=(*_notes(serving, served, board, values["busy"]), *notes),
                parts={name: one[clock, i].item() for name, one in parts.items()},
                **({} if state else values),
            )
        )
    return found


# Checks ---------------------------------------------------------------------------------------------------------------


NARROWED: Final = {("w4a16_mxfp4", "10"): "w4a8_mxfp4_mxfp8"}
"""Formats of experts in which engines run a checkpoint's, by the first number of a GPU's compute capability: they bring inputs to 8 bits.
Source: TensorRT-LLM, deployment guide for gpt-oss (default back end of B200, GB200, B300 and GB300)."""


def _served(serving: Serving, gpu: GpuSpec, batches: Sequence[int]) -> Served:
    """The model under its engine.  Raises EstimatorError for what is missing or impossible."""
    rate = serving.rate
    if (rate is None) == (not batches):
        raise OperatingPointError("say either how many requests are in flight (batch) or how many come per second (rate)")
    sizes = [(name, getattr(serving, name)) for name in ("prompt", "output", "tensor_parallel", "expert_parallel")]
    for name, value in (*sizes, *(("batch", one) for one in batches)):
        low = 1 + (name == "output")
        if type(value) is not int or value < low:
            raise OperatingPointError(f"{name} = {value!r:.40} ({type(value).__name__}): an int of at least {low} is needed")
    if rate is not None and not 0.0 < real(rate, "rate", "requests per second") < inf:
        raise OperatingPointError(f"rate = {rate!r}: requests per second must be a positive number")
    config = read_config(serving.model)
    model = read_architecture(config)
    if model.longest and serving.prompt + serving.output > model.longest:
        raise WorkloadError(
            f"prompt {serving.prompt} and output {serving.output} exceed the context of {model.name}, {model.longest} tokens; shorten one"
        )
    layout = Layout(tensor_parallel=serving.tensor_parallel, expert_parallel=serving.expert_parallel)
    model.check(layout)
    formats = read_weights(config, serving.weights, serving.kv)
    narrow = NARROWED.get((formats.experts, gpu.compute_capability.partition(".")[0]))
    return Served(
        architecture=model,
        weights=replace(formats, experts=narrow) if narrow and not serving.weights else formats,
        layout=layout,
        engine=load_engine(serving.engine).on(gpu),
        prompt=serving.prompt,
        output=serving.output,
    )


def _memory(served: Served, board: Board) -> Memory:
    """Memory of one board; no sequences if the model or one request does not fit."""
    model = served.architecture, served.weights, served.layout
    weights, token, engine = weight_bytes(*model), cache_bytes(*model, context=served.context), served.engine
    free = board.gpu.dram_bytes * engine.memory_share - weights - engine.reserve_bytes
    held = 0 if free < token * (served.prompt + served.output) else max(int(free / (token * served.context)), 1)
    return Memory(
        weights_byte=weights, reserve_byte=engine.reserve_bytes, cache_per_token_byte=token, free_byte=max(free, 0.0), sequences=held
    )


def _too_large(served: Served, board: Board, memory: Memory) -> str:
    """Why a model does not fit."""
    least = memory.weights_byte + memory.reserve_byte + memory.cache_per_token_byte * (served.prompt + served.output)
    return (
        f"does not fit: weights ({memory.weights_byte / GIB:.1f} GiB), reserve and one request take {least / GIB:.1f} GiB of each GPU, the "
        f"engine has {served.engine.memory_share:.0%} of {board.gpu.dram_bytes / GIB:.0f} GiB"
    )


def _remedy(serving: Serving, board: Board, batches: Sequence[int]) -> str:
    for ranks in (2, 4, 8, 16, 32):
        wider = replace(serving, tensor_parallel=ranks)
        try:
            if _memory(_served(wider, board.gpu, batches), board).sequences and serve_many(wider, board, batches):
                return f"--tensor-parallel {ranks} fits" + f", beyond the {NODE_GPUS} GPUs of a node" * (ranks > NODE_GPUS)
        except EstimatorError:  # this model cannot be divided so, or these boards do not run it
            continue
    return "take fewer bits (--weights), shorter requests or a larger GPU"


# Remarks --------------------------------------------------------------------------------------------------------------


def _overload(serving: Serving, tokens_per_s: float) -> str:
    """Why there is no steady state at the rate; empty if there is one."""
    if serving.rate is None or tokens_per_s >= serving.rate * serving.output * (1.0 - ROUNDING):
        return ""
    return f"overloaded: at most {_down(tokens_per_s / serving.output):g} requests/s are served; lower --rate, or take more GPUs"


def _down(value: float) -> float:
    """A positive number with three digits, rounded down."""
    digit = 10.0 ** (floor(log10(value)) - 2)
    return floor(value / digit) * digit


def _crowded(batch: int | None, running: float, memory: Memory) -> str:
    """Why requests wait; empty if none does."""
    if batch is None or running >= batch * (1.0 - ROUNDING):
        return ""
    if running >= SEQUENCES[-1]:
        return f"{running:.0f} of {batch} requests run, the most that is estimated; the others wait"
    return f"memory holds {running:.0f} of {batch} requests ({memory.free_byte / GIB:.1f} GiB for caches on a GPU); the others wait"


def _notes(serving: Serving, served: Served, board: Board, busy: float) -> Iterator[str]:
    """Assumptions about the engine, whether its host sets the pace, and what sums among boards without NVLink depend on."""
    engine = served.engine
    if not engine.known:
        yield f"{serving.engine or 'no engine named'}: half of the host times of {engine.label}, ± {engine.host.spread:.0%}"
    if served.layout.copies > 1:
        yield f"the time to the first token is that of a prompt in each of the {served.layout.copies} copies of the attention at once"
    if busy < BUSY_ENOUGH and serving.rate is None:
        yield f"the boards wait {1.0 - busy:.0%} of the time: the host sets the pace"
    if served.layout.gpus > 2 and 0.0 < board.gpu.link_bytes_per_s <= FASTEST_PCIE:
        # Source: AIConfigurator, six collections of L40S: 2 and 20 GB/s among eight.
        yield "sums among more than two boards over PCIe: a host without a direct way between its sockets takes up to ten times as long"


def _remarks(
    costs: StepCosts, step: int, clock: int, settled_mhz: float, above_limit: bool
) -> tuple[Validity, tuple[str, ...], tuple[str, ...]]:
    """Validity, warnings and notes of one of the decoding steps, and of the prompt, at a clock that the power limit lowers so far."""
    points = costs.points.select(np.array([step, len(costs.decode.at)]) * len(costs.sm_clock_mhz) + clock)
    points = replace(points, sm_clock_mhz=np.full(2, settled_mhz), above_limit=np.full(2, above_limit))
    large = {line for case in points.cases for line in case.too_large}
    validity = max(points.validity(), key=get_args(Validity).index)
    warnings, notes = (dict.fromkeys(line for _, line in lines if line not in large) for lines in (points.warnings, points.notes))
    return validity, tuple(warnings), tuple(notes)
