"""Operator lists of the EnergAIzer artifact: [query, types] pairs in execution order.

Matrix products are written there as C[dimM, dimN] with dimK reduced.  A linear layer puts its outputs into dimM and
its tokens into dimN, a `Conv1D` layer (GPT-2) the other way round; the number of tokens, found from the normalisations,
distinguishes the two.  Element-wise entries give the size of the larger input and whether the input is one or two
tensors.  Convolutions are square, and depthwise ones are written as dense.
Source: the artifact's workload files and its trace parser (arXiv 2604.20105).
"""

import marshal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from estimator.transforms import INNER, LIGHT
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, canonical_precision
from estimator.vocabulary.reader import FaultError, Span, fields_of, read
from estimator.vocabulary.workload import Listing, Operator, Precision, UnknownOperator, make_operator

ELEMENTWISE: Final[dict[str, tuple[str, int]]] = {
    "pointwise_add": ("add", 2),
    "pointwise_mul": ("mul", 2),
    "unspecified_tensor": ("other", 2),
    "unspecified_scalar": ("scalar_pow", 1),
    **{name: (name, 1) for name in ("scalar_add", "scalar_mul", "relu", "gelu", "silu", "tanh", "sigmoid")},
}
"""Element-wise names: our operator and its number of full-size input tensors."""

TYPECAST: Final = "typecast_to_"
ENCODER: Final = "an encoder: every token sees every other"
DECODER: Final = "a decoder: causal"

SPELLINGS: Final = {"n_head": "num_heads", "batch": "batch_size", "prec": "precM", "is_causal": "causal"}
"""Fields of `flashattention_v2` and their names in `sdpa`."""


Size = Annotated[int, Span(1, 1e15)]
"""A dimension; 10^15 elements of one byte are a petabyte, so a larger one is a mistake."""


@dataclass(kw_only=True)
class _Product:
    """A matrix product as listed, before it is known which side holds the tokens."""

    batch: Size
    dimM: Size  # noqa: N815
    dimN: Size  # noqa: N815
    dimK: Size  # noqa: N815
    precM: Precision  # noqa: N815
    precA: Precision | None = None  # noqa: N815
    useTensorCore: bool = True  # noqa: N815


@dataclass(kw_only=True)
class _Convolution:
    """`hw`: height and width of the images; `rs`: of the kernel.  The dimensions of its matrix product follow from these."""

    b: Size
    c: Size
    hw: Size
    m: Size
    rs: Size
    stride: Size
    padding: Annotated[int, Span(0, 1e15)]
    precM: Precision  # noqa: N815
    useTensorCore: bool = True  # noqa: N815


@dataclass(kw_only=True)
class _Elementwise:
    op: str
    dim: Size
    prec: Precision


@dataclass(kw_only=True)
class _Rows:
    batch: Size
    dim: Size
    prec: Precision


@dataclass(kw_only=True)
class _Attention:
    num_heads: Size
    seq_len: Size
    head_dim: Size
    batch_size: Size
    precM: Precision  # noqa: N815
    multi_query_ratio: Size = 1
    causal: bool | None = None


class Entry(NamedTuple):
    """One distinct entry of a list, read by the declaration of its kind (None: unknown kind)."""

    kind: str
    query: Any


def read_energaizer(items: Sequence[Any], where: str) -> Listing:
    """A Listing from the items of an EnergAIzer list.

    `where` names the file in messages, which also state the entry, the field, its value and the remedy.
    Raises WorkloadError for anything that is not such a list, and if no entry is of a known kind.
    """
    first: dict[bytes, int] = {}
    order = [first.setdefault(marshal.dumps(item, 2), place) for place, item in enumerate(items)]  # half the time of repr
    if not order:
        raise WorkloadError(f"{where}: the list is empty; a workload needs at least one operator")
    counts = Counter(order)
    entries = {place: _entry(items[place], f"{where}: entry {place}") for place in counts}
    known = [i for i, entry in entries.items() if entry.kind in READERS]
    numbers = {i: number for number, i in enumerate(known)}
    if not known:
        names = ", ".join(sorted({entry.kind for entry in entries.values()}))
        raise WorkloadError(f"{where}: no operator of a known kind, only {names}; known: {', '.join(READERS)}")
    kept = [i for i in order if i in numbers]
    roles = _product_roles(entries) | _attention_roles(entries, kept)
    return Listing(
        operators=tuple(READERS[entries[i].kind][1](entries[i].query, roles.get(i, "")) for i in known),
        order=tuple(map(numbers.__getitem__, kept)),
        counts=tuple(float(counts[i]) for i in known),
        unknown=tuple(UnknownOperator(name=entry.kind, count=counts[i]) for i, entry in entries.items() if i not in numbers),
        warnings=tuple(_assumptions([(entries[i], counts[i]) for i in known])),
        notes=tuple(dict.fromkeys(f"fused attention is taken as that of {role}" for role in roles.values() if role in (ENCODER, DECODER))),
    )


def _entry(raw: Any, place: str) -> Entry:
    """An entry from its JSON value.  Raises WorkloadError."""
    if not isinstance(raw, list) or len(raw) != 2 or not isinstance(raw[0], dict):
        raise WorkloadError(f"{place} must be a pair [query, types], the query an object of named fields, got {raw!r:.60}")
    query, types = raw
    kind = types[0] if isinstance(types, list) and types else types
    if not isinstance(kind, str) or not kind:
        raise WorkloadError(f"{place}: the types must be a list of names such as ['softmax', 'bf16'], got {types!r:.60}")
    kind = kind.lower()
    if kind not in READERS:
        return Entry(kind, None)
    declared, _ = READERS[kind]
    named = {SPELLINGS.get(name, name): value for name, value in query.items()} | query if declared is _Attention else query
    try:
        found: Any = read(declared, {name: named[name] for name in fields_of(declared) if name in named})
        if declared is _Attention and found.num_heads % found.multi_query_ratio:
            raise FaultError(f"= {found.multi_query_ratio} must be a divisor of num_heads = {found.num_heads}", "multi_query_ratio")
    except FaultError as fault:
        raise WorkloadError(f"{place} ({kind}): {fault}; correct it or trace the model again") from None
    return Entry(kind, found)


def _assumptions(entries: list[tuple[Entry, int]]) -> list[str]:
    """Assumptions of the model about properties that the list does not state."""
    plain: Counter[str] = Counter()
    for entry, count in entries:
        if isinstance(entry.query, _Elementwise) and _elementwise_meaning(entry.query.op) is None:
            plain[entry.query.op] += count
    return [
        f"element-wise operator {name!r} ×{count} is unknown and taken as one that reads and writes one tensor"
        for name, count in plain.items()
    ]


# Which side of a product holds the tokens, and which products are batched ----------------------------------------


def _product_roles(entries: dict[int, Entry]) -> dict[int, str]:
    """The role of every gemm entry: "bmm", "linear" (tokens in dimN) or "conv1d" (tokens in dimM).

    The number of tokens is the number of layer-norm rows; if both dimensions or neither equal it, the majority of other layers decides.
    """
    products = {i: entry.query for i, entry in entries.items() if entry.kind == "gemm"}
    tokens = {entry.query.batch for entry in entries.values() if entry.kind.startswith("layernorm")}
    layers = {i: (p.dimM in tokens, p.dimN in tokens) for i, p in products.items() if p.batch == 1 and p.dimK > 1}
    tally = Counter(layers.values())
    rows_win = tally[True, False] > tally[False, True]
    sides = {i: (rows_win if in_rows == in_columns else in_rows) for i, (in_rows, in_columns) in layers.items()}
    return {i: "bmm" if i not in sides else "conv1d" if sides[i] else "linear" for i in products}


def _attention_roles(entries: dict[int, Entry], order: Sequence[int]) -> dict[int, str]:
    """The role of fused attention that does not state it: an encoder has image patches or ends with a pooler's tanh."""
    unclear = [i for i, entry in entries.items() if isinstance(entry.query, _Attention) and entry.query.causal is None]
    last = entries[order[-1]].query
    encoder = any(entry.kind == "conv2d" for entry in entries.values()) or (isinstance(last, _Elementwise) and last.op == "tanh")
    return dict.fromkeys(unclear, ENCODER if encoder else DECODER)


# Entries → operators ------------------------------------------------------------------------------------------------
# The reader has checked ranges and whole numbers.  Operators of families without further rules on their sizes are made without
# a second check.


def _precision(name: str) -> str:
    return canonical_precision(name) or ""


def _gemm(query: _Product, role: str) -> Operator:
    precision, out = _precision(query.precM), _precision(query.precA or query.precM)
    if precision == out == "fp32" and query.useTensorCore:
        precision = out = "tf32"  # tensor cores accept fp32 operands only in this form
    m, n = (query.dimN, query.dimM) if role == "linear" else (query.dimM, query.dimN)
    return Operator(
        family="gemm",
        operator="bmm" if role == "bmm" else "linear",
        precision=precision,
        shape=(float(query.batch), float(m), float(n), float(query.dimK)),
        precision_out="" if out == precision else out,
        cuda_cores=not query.useTensorCore,
    )


def _conv(query: _Convolution, _role: str) -> Operator:
    return make_operator(
        "conv",
        "conv2d",
        _precision(query.precM),
        batch=query.b,
        channels=query.c,
        height=query.hw,
        width=query.hw,
        filters=query.m,
        kernel_h=query.rs,
        kernel_w=query.rs,
        stride=query.stride,
        padding=query.padding,
        groups=1,
        cuda_cores=not query.useTensorCore,
    )


def _elementwise(query: _Elementwise, _role: str) -> Operator:
    operator, reads, out = _elementwise_meaning(query.op) or ("other", 1, "")
    precision = _precision(query.prec)
    # The list holds only the two conversions around an fp32 softmax; the widening one runs inside the softmax call.
    inside = out and BYTES_PER_ELEMENT[out] > BYTES_PER_ELEMENT[precision]
    return Operator(
        family="elementwise",
        operator=operator,
        precision=precision,
        shape=(float(query.dim), float(query.dim * reads)),
        precision_out="" if out == precision else out,
        host_share=INNER if inside else LIGHT,
    )


def _elementwise_meaning(name: str) -> tuple[str, int, str] | None:
    """Our operator, tensors read and output precision of an element-wise name; None if unknown."""
    if name in ELEMENTWISE:
        return (*ELEMENTWISE[name], "")
    out = canonical_precision(name.removeprefix(TYPECAST)) if name.startswith(TYPECAST) else None
    return ("typecast", 1, out) if out else None


def _rows(family: str, operator: str) -> Callable[[_Rows, str], Operator]:
    return lambda query, _role: Operator(
        family=family, operator=operator, precision=_precision(query.prec), shape=(float(query.batch), float(query.dim))
    )


def _attention(query: _Attention, role: str) -> Operator:
    """The operator of fused attention.  Its field `causal`, which the artifact does not write, takes precedence over the role."""
    return make_operator(
        "attention",
        "prefill",
        _precision(query.precM),
        batch=query.batch_size,
        queries=query.seq_len,
        context=query.seq_len,
        heads=query.num_heads,
        kv_heads=query.num_heads // query.multi_query_ratio,
        head_dim=query.head_dim,
        window=0,
        causal=int(role == DECODER if query.causal is None else query.causal),
    )


READERS: Final[dict[str, tuple[type, Callable[[Any, str], Operator]]]] = {
    "gemm": (_Product, _gemm),
    "conv2d": (_Convolution, _conv),
    "elementwise": (_Elementwise, _elementwise),
    **dict.fromkeys(("softmax", "softmax_fusion"), (_Rows, _rows("softmax", "softmax"))),
    **dict.fromkeys(("layernorm", "layernorm_fusion"), (_Rows, _rows("norm", "layernorm"))),
    **dict.fromkeys(("sdpa", "flashattention_v2"), (_Attention, _attention)),
}
"""Kinds of entries: the declaration of each, and the function that makes its operator."""
