"""Minimum work of operators: useful flop and compulsory bytes, independent of any GPU.

These are for shares and sums over workloads.  The equations in `estimator.model.lowering` count more: padding, tiles,
passes and cache hits.
"""

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, FORMATS
from estimator.vocabulary.workload import CACHED, COMPLETED, Operator, Workload, conv_output_size


class Work(NamedTuple):
    """Useful work of one operator: operations of multiply-adds [flop] and bytes read and written [byte]."""

    flop: float
    read_byte: float
    write_byte: float


def operator_work(operator: Operator) -> Work:
    """Multiply-add flop (matrix products, convolutions, attention; 0 elsewhere) and compulsory traffic."""
    family, width = operator.family, BYTES_PER_ELEMENT[operator.precision]
    out_width = BYTES_PER_ELEMENT[operator.out_precision]
    if family == "gemm":
        batch, m, n, k = operator.shape
        return Work(
            2.0 * batch * m * n * k, batch * k * (m * width + n * FORMATS[operator.precision].weight_byte), batch * m * n * out_width
        )
    if family == "conv":
        batch, channels, height, width_px, filters, kernel_h, kernel_w, _, _, groups = operator.shape
        out_h, out_w = conv_output_size(operator)
        outputs, taps = batch * filters * out_h * out_w, channels / groups * kernel_h * kernel_w
        return Work(2.0 * outputs * taps, (batch * channels * height * width_px + filters * taps) * width, outputs * out_width)
    if family in CACHED:
        return _attention_work(operator, width, out_width)
    if family == "moe":
        load, matrices = expert_load(operator), 2.0 + operator["gated"]
        weights = load.experts * matrices * operator["hidden"] * operator["inter"] / operator["tp"]
        passed = operator["tokens"] * operator["hidden"]
        return Work(2.0 * weights * load.rows, weights * FORMATS[operator.precision].weight_byte + passed * width, passed * out_width)
    if family == "communication":
        return Work(0.0, operator["message_bytes"], operator["message_bytes"])
    if family in ("softmax", "norm", "quantise", "reduction"):
        rows, dim = operator.shape
        return Work(0.0, rows * dim * width, rows * (1.0 if family == "reduction" else dim) * out_width)
    elements, reads = operator.shape
    return Work(0.0, reads * width, elements * out_width)


LATENT: Final = 576.0
"""Numbers that latent attention caches for a token: 512 of the latent vector and 64 with the position.
Source: DeepSeek-V2 (arXiv 2405.04434), as for the sizes of heads: keys of 192 = 128 + 64, values of 128."""


def attention_shape(operator: Operator) -> tuple[float, ...]:
    """Shape of attention, and numbers that are cached for a token and key head.

    Latent attention as ordinary one with the same products: prefill expands the cache to keys of 192 and values of 128 for each head;
    decode multiplies all heads with the latent vectors, as keys of 576 and values of 512.
    """
    if operator.family == "attention":
        return (*operator.shape, 2.0 * operator["head_dim"])
    batch, queries, context, heads = operator.shape
    if operator.operator == "mla_prefill":
        return batch, queries, context, heads, heads, 160.0, 0.0, 1.0, 320.0
    return batch, queries, context, heads, 1.0, 544.0, 0.0, 0.0, LATENT


class ExpertLoad(NamedTuple):
    """Load of a GPU: experts that any token chose, pairs of token and expert, rows of each such expert."""

    experts: float
    pairs: float
    rows: float


def expert_load(operator: Operator, average: bool = False) -> ExpertLoad:
    """Expected load of a group of experts: of its fullest GPU, or of its average one.

    Loads are equal, spread over as many experts as there are pairs, or follow x^-skew between 1 and 0.8 · tokens, as the published tables
    draw them, and lie on the GPUs by chance.
    """
    tokens, _, _, topk, experts, _, ep, skew, _ = operator.shape
    return _expert_load(tokens, topk / ep, experts / ep, 1.0, skew) if average else _expert_load(tokens, topk, experts, ep, skew)


@lru_cache(maxsize=65536)
def _expert_load(tokens: float, topk: float, experts: float, ep: float, skew: float) -> ExpertLoad:
    if skew:
        falling = 1.0 - skew or 1e-6  # the limit at skew = 1 is smooth
        last = max(0.8 * tokens, 1.0) ** falling
        drawn = ((last - 1.0) * (np.arange(experts) + 0.5) / experts + 1.0) ** (1.0 / falling)
        share = (tokens * (topk - np.arange(experts)) / np.cumsum(drawn)[::-1]).max()  # the others take what is more than all tokens
        loads = np.pad(np.minimum(share * drawn, tokens), (0, int(-experts % ep)))
        # The mean of 16 draws (the tables' is of five).
        dealt = np.random.default_rng(0).permuted(np.tile(loads, (16, 1)), axis=1).reshape(16, int(ep), -1)
        held, hit = dealt.sum(axis=2), (1.0 - (1.0 - dealt / tokens) ** tokens).sum(axis=2)
        fullest = held == held.max(axis=1, keepdims=True)
        found, pairs = (float(each[fullest].mean()) for each in (hit, held))
    else:
        pairs = tokens * topk / ep
        found = min(experts / ep, pairs)
    found, pairs = max(found, 1.0), max(pairs, 1.0)  # some GPU has a pair
    return ExpertLoad(found, pairs, pairs / found)


def _attention_work(operator: Operator, width: float, out_width: float) -> Work:
    batch, queries, context, heads, kv_heads, head_dim, window, causal, cached = attention_shape(operator)
    visible = min(context, window) if window else context
    pairs = queries * visible
    if causal and queries > 1.0:
        unseen = min(queries, visible)
        pairs -= unseen * (unseen - 1.0) / 2.0
    kv_width = BYTES_PER_ELEMENT[operator.kv_precision]
    query_elements = batch * queries * heads * head_dim
    seen = min(context, visible + queries - 1.0)  # keys that any query sees: the windows of neighbours overlap
    read = query_elements * width + batch * seen * kv_heads * cached * kv_width
    return Work(4.0 * batch * heads * pairs * head_dim, read, query_elements * out_width)


def workload_work(workload: Workload) -> Work:
    """Total work of a workload."""
    rows = [
        [count * value for value in operator_work(operator)] for operator, count in zip(workload.operators, workload.counts, strict=True)
    ]
    return Work(*map(sum, zip(*rows, strict=True)))


class Missing(NamedTuple):
    """Operators of unknown kinds, all that are not added, and the share of the unknown ones in the elements written; nan: unknown."""

    operators: int
    whole: float
    written: float

    @property
    def share(self) -> float:
        """The larger of their shares in the operators and in the elements written: a stand-in for that in the time."""
        return float(np.fmax(self.operators / self.whole, self.written))


def missing_work(workload: Workload) -> Missing:
    """The operators of unknown kinds of a workload."""
    pairs = zip(workload.operators, workload.counts, strict=True)
    listed = [(operator, count) for operator, count in pairs if not operator.origin.startswith(COMPLETED)]
    missing = sum(entry.count for entry in workload.unknown)
    elements = sum(entry.elements * entry.count for entry in workload.unknown)
    known = sum(count * operator_work(one).write_byte / BYTES_PER_ELEMENT[one.out_precision] for one, count in listed)
    return Missing(missing, missing + sum(count for _, count in listed), elements / (elements + known) if elements else np.nan)


def workload_warnings(workload: Workload) -> tuple[str, ...]:
    """One line for each property of a workload that a prediction does not cover, most serious first."""
    if not workload.unknown:
        return workload.warnings
    missing, whole, written = missing_work(workload)
    size = f", {written:.1%} of the elements written" if np.isfinite(written) else ", size unknown"
    names = ", ".join(f"{entry.name:.80} ×{entry.count}" for entry in workload.unknown)
    return (
        f"{missing} of {whole:.0f} operators ({missing / whole:.1%}{size}) are of kinds that cannot be modelled and are left out: {names}",
        *workload.warnings,
    )
