"""Patterns in a list of operators: attention written out, convolutions and their neighbours.

A pattern is found at every place but kept once, with the number of its occurrences: layers repeat.
"""

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

from estimator.listing import Listing, main_precision
from estimator.workload import Operator

PROJECTIONS: Final = 3
"""Linear layers before attention: query, key, value, or fewer where they are fused."""

NOTHING: Final = -1
"""Stands for a neighbour that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBlock:
    """Attention as scores = Q·Kᵀ, softmax, scores·V; `count` blocks of the same operators.

    `projections`, `before`, `between` are indices of operators: the linear layers that make Q, K and V, the
    element-wise work on them, and that between the scores and the softmax.  `sequences` · `heads` products run
    at once.  A fused attention kernel has `score` = NOTHING.
    """

    projections: tuple[int, ...]
    before: tuple[int, ...]
    between: tuple[int, ...]
    score: int
    sequences: int
    heads: int
    kv_heads: int
    queries: int
    context: int
    head_dim: int
    precision: str
    count: int

    @property
    def query_elements(self) -> float:
        """Elements of Q, and of the result."""
        return float(self.sequences * self.heads * self.queries * self.head_dim)

    @property
    def key_elements(self) -> float:
        """Elements of K or of V at the full number of heads."""
        return float(self.sequences * self.heads * self.context * self.head_dim)

    @property
    def score_elements(self) -> float:
        """Elements of the score matrices."""
        return float(self.sequences * self.heads * self.queries * self.context)


class ConvSite(NamedTuple):
    """A convolution with its neighbours as indices of operators (NOTHING at the ends); `times` such places.

    `before`, `before_that` and `after` are whatever runs next to it; `previous` and `following` the nearest
    convolutions, `norm` the next normalisation where no convolution or product comes first.
    """

    conv: int
    before: int
    before_that: int
    after: int
    previous: int
    following: int
    norm: int
    times: int


class Patterns:
    """A listing with what the rules look for in it, each found once when first asked for."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.operators = listing.operators
        self.order = listing.order

    @cached_property
    def counts(self) -> tuple[float, ...]:
        """How often each operator runs."""
        return self.listing.counts

    @cached_property
    def precision(self) -> str:
        """Precision of most matrix products."""
        return main_precision(self.operators, self.counts)

    @cached_property
    def attention(self) -> tuple[AttentionBlock, ...]:
        """Attention blocks, fused ones included."""
        return tuple(_attention_blocks(self.listing))

    @cached_property
    def conv_order(self) -> tuple[int, ...]:
        """Convolutions in the order of execution."""
        convolutions = [number for number, operator in enumerate(self.operators) if operator.family == "conv"]
        return tuple(self.order[place] for place in self.listing.places(convolutions)) if convolutions else ()

    @cached_property
    def conv_sites(self) -> tuple[ConvSite, ...]:
        """Convolutions with their neighbours."""
        return tuple(_conv_sites(self.listing)) if self.conv_order else ()

    @cached_property
    def depthwise(self) -> frozenset[ConvSite]:
        """Sites whose convolution is depthwise although it is listed as dense.

        A k×k convolution with as many inputs as outputs, right after an activation that follows an expanding 1×1
        convolution with as many outputs.  In a bottleneck (ResNet) the 1×1 does not expand; a k×k after a 1×1
        without activation (MobileViT's local representation) is dense.
        """
        return frozenset(site for site in self.conv_sites if self._is_depthwise(site))

    def _is_depthwise(self, site: ConvSite) -> bool:
        _, channels, _, _, filters, kernel, _, _, _, groups = self.operators[site.conv].shape
        if kernel == 1.0 or channels != filters or groups > 1.0 or site.before_that == NOTHING:
            return False
        activation, expansion = self.operators[site.before], self.operators[site.before_that]
        return (
            activation.family == "elementwise"
            and expansion.family == "conv"
            and expansion["kernel_h"] == 1.0
            and expansion["filters"] == channels > expansion["channels"]
        )

    def operator(self, index: int) -> Operator | None:
        """The operator with an index, None for NOTHING."""
        return self.operators[index] if index != NOTHING else None


def _attention_blocks(listing: Listing) -> Iterator[AttentionBlock]:
    families = [operator.family for operator in listing.operators]
    heavy = {number for number, family in enumerate(families) if family != "elementwise"}
    places: Counter[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int, int]] = Counter()
    for (window, centre), count in _attention_windows(listing, families, heavy).items():
        marks = [position for position, number in enumerate(window) if number in heavy]
        number = window[marks[centre]]
        if families[number] == "softmax":
            score, product = centre - 1, centre + 1
            if score < 0 or product == len(marks) or any(families[window[marks[mark]]] != "gemm" for mark in (score, product)):
                continue
            projections, before = _projections(listing, window, marks, score)
            between = window[marks[score] + 1 : marks[centre]]
            places[projections, before, between, window[marks[score]], number, window[marks[product]]] += count
        else:
            projections, before = _projections(listing, window, marks, centre)
            places[projections, before, (), NOTHING, number, NOTHING] += count
    for (projections, before, between, score_number, centre, product_number), count in places.items():
        block = (
            _fused_block(listing, projections, before, centre, count)
            if score_number == NOTHING
            else _eager_block(listing, projections, before, between, (score_number, centre, product_number), count)
        )
        if block is not None:
            yield block


def _attention_windows(listing: Listing, families: Sequence[str], heavy: Set[int]) -> Counter[tuple[tuple[int, ...], int]]:
    """What runs around each softmax and fused attention, as far as a block of attention may reach: the number of occurrences.

    heavy: all that is not element-wise.  Beside each window stands which of its heavy operators the centre is.
    """
    centres = {number for number in heavy if families[number] in ("softmax", "attention")}
    if not centres:
        return Counter()
    order, marks = listing.order, listing.places(heavy)
    ranks = {position: rank for rank, position in enumerate(marks)}
    found: list[tuple[tuple[int, ...], int]] = []
    for position in listing.places(centres):
        rank = ranks[position]
        first = max(rank - 1 - PROJECTIONS, 0)
        last = min(rank + 1, len(marks) - 1)
        found.append((order[marks[first] : marks[last] + 1], rank - first))
    return Counter(found)


def _projections(
    listing: Listing, window: tuple[int, ...], marks: Sequence[int], attention: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Linear layers with one common input that lead to attention, and the element-wise work after the first of them.

    marks: positions of all in the window that is not element-wise; attention: which of them.
    """
    inputs: tuple[float, ...] = ()
    first = attention
    while first > 0 and attention - first < PROJECTIONS:
        operator = listing.operators[window[marks[first - 1]]]
        if operator.operator != "linear" or (inputs and inputs != (operator.shape[1], operator.shape[3])):
            break
        inputs = (operator.shape[1], operator.shape[3])
        first -= 1
    linears = tuple(window[mark] for mark in marks[first:attention])
    before = (window[marks[rank] + 1 : marks[rank + 1]] for rank in range(first, attention))
    return linears, tuple(chain.from_iterable(before))


def _eager_block(
    listing: Listing,
    projections: tuple[int, ...],
    before: tuple[int, ...],
    between: tuple[int, ...],
    centre: tuple[int, int, int],
    count: int,
) -> AttentionBlock | None:
    score, softmax, product = (listing.operators[number] for number in centre)
    batch, queries, context, head_dim = score.shape
    rows, dim = softmax.shape
    if rows != batch * queries or dim != context or product.shape[:2] != (batch, queries) or product.shape[3] != context:
        return None
    sequences = _sequences(listing, projections, int(batch), int(queries), int(context))
    heads = int(batch) // sequences
    return AttentionBlock(
        projections=projections,
        before=before,
        between=between,
        score=centre[0],
        sequences=sequences,
        heads=heads,
        kv_heads=_kv_heads(listing, projections, heads, int(head_dim)),
        queries=int(queries),
        context=int(context),
        head_dim=int(head_dim),
        precision=score.precision,
        count=count,
    )


def _fused_block(listing: Listing, projections: tuple[int, ...], before: tuple[int, ...], number: int, count: int) -> AttentionBlock:
    operator = listing.operators[number]
    batch, queries, context, heads, kv_heads, head_dim, _, _ = (int(size) for size in operator.shape)
    return AttentionBlock(
        projections=projections,
        before=before,
        between=(),
        score=NOTHING,
        sequences=batch,
        heads=heads,
        kv_heads=min(kv_heads, _kv_heads(listing, projections, heads, head_dim)),
        queries=queries,
        context=context,
        head_dim=head_dim,
        precision=operator.precision,
        count=count,
    )


def _sequences(listing: Listing, projections: tuple[int, ...], batch: int, queries: int, context: int) -> int:
    """Sequences at once: tokens of the last projection over the length, else the hint, else 1."""
    if projections:
        tokens = int(listing.operators[projections[-1]]["m"])
        for length in (context, queries):
            if tokens % length == 0 and batch % (tokens // length) == 0:
                return tokens // length
    hint = listing.sequences_hint
    return hint if hint and batch % hint == 0 else 1


def _kv_heads(listing: Listing, projections: tuple[int, ...], heads: int, head_dim: int) -> int:
    """Heads of keys and values, from the width of the last projection; `heads` where that tells nothing."""
    if not projections:
        return heads
    width = int(listing.operators[projections[-1]]["n"])
    if width % head_dim:
        return heads
    count = width // head_dim
    if len(projections) == 1:  # Q, K and V in one layer
        count = (count - heads) // 2 if (count - heads) % 2 == 0 else heads
    return count if 0 < count < heads and heads % count == 0 else heads


def _conv_sites(listing: Listing) -> Iterator[ConvSite]:
    families = [operator.family for operator in listing.operators]
    order = (NOTHING, NOTHING, *listing.order, NOTHING)
    places = [position for position, number in enumerate(order) if number != NOTHING and families[number] == "conv"]
    sites: Counter[tuple[int, int, int, int, int, int, int]] = Counter()
    for i, position in enumerate(places):
        previous = order[places[i - 1]] if i else NOTHING
        following = order[places[i + 1]] if i + 1 < len(places) else NOTHING
        norm = _next_norm(order, families, position)
        sites[order[position], order[position - 1], order[position - 2], order[position + 1], previous, following, norm] += 1
    for site, count in sites.items():
        yield ConvSite(*site, times=count)


def _next_norm(order: Sequence[int], families: list[str], position: int) -> int:
    """The normalisation that follows a position with nothing but element-wise work before it."""
    for number in order[position + 1 :]:
        if number == NOTHING or families[number] not in ("elementwise", "norm"):
            return NOTHING
        if families[number] == "norm":
            return number
    return NOTHING
