"""Patterns in a list of operators: attention written out, convolutions and their neighbours; and the changes that a rule yields.

A pattern is found at every place and kept once, with the number of its occurrences: layers repeat.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

from estimator.transforms import LIGHT
from estimator.transforms.rewriting import sequences_of
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Listing, Operator, main_precision

PROJECTIONS: Final = 3
"""Most linear layers before attention: query, key, value; fewer if they are fused."""

NOTHING: Final = -1
"""Index of a missing neighbour."""


class Change(NamedTuple):
    """`times` times `operator`: added, or, if `replaces` is an operator's index, in place of that operator."""

    operator: Operator
    times: float
    replaces: int = NOTHING


def added(times: float, kind: str, precision: str, written: float, read: float, share: float = LIGHT, out: str = "") -> Change:
    """A kernel such as "copy.cat", added with the elements that it writes and reads, or "norm.batchnorm" with rows and their length."""
    family, _, name = kind.partition(".")
    shape = (written, read)
    return Change(Operator(family=family, operator=name, precision=precision, shape=shape, host_share=share, precision_out=out), times)


def with_reads(operator: Operator, reads: float, new_name: str = "") -> Operator:
    """A listed element-wise operator with fewer reads, because an input is broadcast."""
    return replace(operator, operator=new_name or operator.operator, shape=(operator.shape[0], reads))


@frozen
class AttentionBlock:
    """Attention as scores = Q·Kᵀ, softmax, scores·V; `count` blocks of the same operators.

    `projections`, `before`, `between` are indices of operators: the linear layers that make Q, K and V, the
    element-wise work on them, and that between the scores and the softmax.  `sequences` · `heads` products run
    at once.  A fused attention kernel is no block: the published lists hold none.
    """

    projections: tuple[int, ...]
    before: tuple[int, ...]
    between: tuple[int, ...]
    sequences: int
    heads: int
    kv_heads: int
    queries: int
    context: int
    head_dim: int
    precision: str
    count: int = 0

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
    convolutions, `norm` the next normalisation if no convolution or product comes first.
    """

    conv: int
    before: int
    before_that: int
    after: int
    previous: int
    following: int
    norm: int
    times: int = 0


class Patterns:
    """A listing and its patterns, each computed on first use."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.operators = listing.operators
        self.order = listing.order
        self.counts = listing.counts

    @cached_property
    def precision(self) -> str:
        """Precision of most matrix products."""
        return main_precision(self.operators, self.counts)

    @cached_property
    def attention(self) -> tuple[AttentionBlock, ...]:
        """Attention blocks."""
        return tuple(replace(block, count=count) for block, count in _attention_blocks(self.listing).items())

    @cached_property
    def conv_order(self) -> tuple[int, ...]:
        """Convolutions in the order of execution."""
        return tuple(number for number in self.order if self.operators[number].family == "conv")

    @cached_property
    def conv_sites(self) -> tuple[ConvSite, ...]:
        """Convolutions with their neighbours."""
        return tuple(_conv_sites(self.listing))

    def is_depthwise(self, site: ConvSite) -> bool:
        """Whether a convolution is depthwise although it is listed as dense.

        A k×k convolution with as many inputs as outputs, right after an activation that follows an expanding 1×1
        convolution with as many outputs.  In a bottleneck (ResNet) the 1×1 does not expand; a k×k after a 1×1
        without activation (MobileViT's local representation) is dense.
        """
        _, channels, _, _, filters, size, _, _, _, groups = self.operators[site.conv].shape
        if size == 1.0 or channels != filters or groups > 1.0 or site.before_that == NOTHING:
            return False
        activation, expansion = self.operators[site.before], self.operators[site.before_that]
        expands = expansion.family == "conv" and expansion["kernel_h"] == 1.0 and expansion["filters"] == channels > expansion["channels"]
        return activation.family == "elementwise" and expands


# Attention ------------------------------------------------------------------------------------------------------------


def _attention_blocks(listing: Listing) -> Counter[AttentionBlock]:
    """Attention blocks and how often each runs.

    Each softmax has a window that contains its block; each distinct window is searched once.
    """
    heavy = {number for number, operator in enumerate(listing.operators) if operator.family != "elementwise"}
    marks = listing.places(heavy)
    windows: Counter[tuple[tuple[int, ...], int]] = Counter()
    for rank in range(1, len(marks) - 1):
        if listing.operators[listing.order[marks[rank]]].family == "softmax":
            first = max(rank - 1 - PROJECTIONS, 0)
            windows[listing.order[marks[first] : marks[rank + 1] + 1], rank - first] += 1
    found: Counter[AttentionBlock] = Counter()
    for (window, centre), count in windows.items():
        block = _block(listing.operators, window, [place for place, number in enumerate(window) if number in heavy], centre)
        if block is not None:
            found[block] += count
    return found


def _block(operators: Sequence[Operator], window: tuple[int, ...], marks: list[int], centre: int) -> AttentionBlock | None:
    """The block around a softmax between two products; None if its neighbours are no such products.

    marks: positions of all operators in the window that are not element-wise; centre: index of the softmax in `marks`.
    """
    score, softmax, product = (operators[window[mark]] for mark in marks[centre - 1 : centre + 2])
    if score.family != "gemm" or product.family != "gemm":
        return None
    batch, queries, context, head_dim = (int(size) for size in score.shape)
    if softmax.shape != (batch * queries, context) or product.shape[:2] != (batch, queries) or product.shape[3] != context:
        return None
    projections, before = _projections(operators, window, marks, centre - 1)
    sequences = int(sequences_of(operators, score))
    heads = batch // sequences
    return AttentionBlock(
        projections=projections,
        before=before,
        between=window[marks[centre - 1] + 1 : marks[centre]],
        sequences=sequences,
        heads=heads,
        kv_heads=_kv_heads(operators, projections, heads, head_dim),
        queries=queries,
        context=context,
        head_dim=head_dim,
        precision=score.precision,
    )


def _projections(
    operators: Sequence[Operator], window: tuple[int, ...], marks: Sequence[int], attention: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Linear layers with one common input that lead to attention, and the element-wise work after the first of them."""
    inputs: tuple[float, ...] = ()
    first = attention
    while first > 0 and attention - first < PROJECTIONS:
        operator = operators[window[marks[first - 1]]]
        if operator.operator != "linear" or (inputs and inputs != (operator.shape[1], operator.shape[3])):
            break
        inputs = (operator.shape[1], operator.shape[3])
        first -= 1
    linears = tuple(window[mark] for mark in marks[first:attention])
    start = marks[first] + 1
    return linears, tuple(window[place] for place in range(start, marks[attention]) if place not in marks)


def _kv_heads(operators: Sequence[Operator], projections: tuple[int, ...], heads: int, head_dim: int) -> int:
    """Heads of keys and values, from the width of the last projection; `heads` if the width does not determine them."""
    count, rest = divmod(int(operators[projections[-1]]["n"]), head_dim) if projections else (0, 0)
    if len(projections) == 1:  # Q, K and V in one layer
        count, rest = divmod(count - heads, 2) if not rest else (0, 0)
    return count if not rest and 0 < count < heads and heads % count == 0 else heads


# Convolutions ---------------------------------------------------------------------------------------------------------


def _conv_sites(listing: Listing) -> Iterator[ConvSite]:
    families = [operator.family for operator in listing.operators]
    order = (NOTHING, NOTHING, *listing.order, NOTHING)
    places = [position for position, number in enumerate(order) if number != NOTHING and families[number] == "conv"]
    convs = [NOTHING, *(order[place] for place in places), NOTHING]
    sites: Counter[ConvSite] = Counter()
    for i, position in enumerate(places):
        near = (order[position], order[position - 1], order[position - 2], order[position + 1])
        sites[ConvSite(*near, convs[i], convs[i + 2], _next_norm(order, families, position))] += 1
    for site, count in sites.items():
        yield site._replace(times=count)


def _next_norm(order: Sequence[int], families: list[str], position: int) -> int:
    """The normalisation that follows a position with only element-wise operators between."""
    number = next(number for number in order[position + 1 :] if number == NOTHING or families[number] != "elementwise")
    return number if number != NOTHING and families[number] == "norm" else NOTHING
