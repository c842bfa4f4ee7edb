"""Operator lists of the EnergAIzer artifact: [query, types] pairs in execution order.

Matrix products are written there as C[dimM, dimN] with dimK reduced.  A linear layer puts its outputs into dimM and
its tokens into dimN, a `Conv1D` layer (GPT-2) the other way round; which of the two is told by the number of tokens,
found from the normalisations.  Element-wise entries give the size of the larger input and whether one or two
tensors came in.  Convolutions are square, and depthwise ones are written as dense.
Source: the artifact's workload files and its trace parser (arXiv 2604.20105).
"""

import marshal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from estimator.errors import WorkloadError
from estimator.listing import Listing
from estimator.quantities import canonical_precision
from estimator.workload import Operator, UnknownOperator, make_operator

LARGEST_DIMENSION: Final = 1e15
"""Above this a dimension is a mistake: 10^15 elements of one byte are a petabyte."""

ELEMENTWISE: Final[dict[str, tuple[str, int]]] = {
    "pointwise_add": ("add", 2),
    "pointwise_mul": ("mul", 2),
    "unspecified_tensor": ("other", 2),
    "scalar_add": ("scalar_add", 1),
    "scalar_mul": ("scalar_mul", 1),
    "unspecified_scalar": ("scalar_pow", 1),
    "relu": ("relu", 1),
    "gelu": ("gelu", 1),
    "silu": ("silu", 1),
    "tanh": ("tanh", 1),
    "sigmoid": ("sigmoid", 1),
}
"""Element-wise names: our operator and how many tensors of the full size it reads."""

TYPECAST: Final = "typecast_to_"

MARSHAL_VERSION: Final = 2
"""The last version without references between objects: equal entries give equal bytes."""


class Entry(NamedTuple):
    """One distinct entry of a list, and the place of its first occurrence for messages."""

    kind: str
    query: dict[str, Any]
    place: str


class Product(NamedTuple):
    """A matrix product as listed, before it is known which side holds the tokens."""

    batch: int
    rows: int
    columns: int
    depth: int


def read_energaizer(document: Sequence[Any], where: str, sequences_hint: int = 0) -> Listing:
    """A Listing from the parsed JSON of an EnergAIzer list.

    `where` names the file in messages, which also say the entry, the field, its value and the remedy.
    Raises WorkloadError for anything that is not such a list, and where no entry is of a known kind.
    """
    if not document:
        raise WorkloadError(f"{where}: the list is empty; a workload needs at least one operator")
    entries, order = _distinct_entries(document, where)
    known = [entry.kind in READERS for entry in entries]
    unknown = _unknown_operators(entries, order, known)
    kept = tuple(i for i in order if known[i]) if unknown else tuple(order)
    if not kept:
        names = ", ".join(sorted({entry.kind for entry in entries}))
        raise WorkloadError(f"{where}: no operator of a known kind, only {names}; known: {', '.join(READERS)}")
    roles = _product_roles(entries, kept)
    operators = [_operator(entry, roles.get(i, "")) if known[i] else None for i, entry in enumerate(entries)]
    place = {index: position for position, index in enumerate(i for i, operator in enumerate(operators) if operator is not None)}
    return Listing(
        operators=tuple(operator for operator in operators if operator is not None),
        order=tuple(place[i] for i in kept) if unknown else kept,
        unknown=unknown,
        warnings=_assumptions(entries, order, known),
        sequences_hint=sequences_hint,
    )


def _distinct_entries(document: Sequence[Any], where: str) -> tuple[list[Entry], list[int]]:
    """Distinct entries, and for each place of the list the number of its entry."""
    numbers: dict[bytes, int] = {}
    order: list[int] = []
    entries: list[Entry] = []
    for position, raw in enumerate(document):
        key = marshal.dumps(raw, MARSHAL_VERSION)
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = len(entries)
            entries.append(_checked_entry(raw, f"{where}: entry {position}"))
        order.append(number)
    return entries, order


def _checked_entry(raw: Any, place: str) -> Entry:
    if not isinstance(raw, list) or len(raw) != 2:
        raise WorkloadError(f"{place} must be a pair [query, types], got {_short(raw)}")
    query, types = raw
    if not isinstance(query, dict):
        raise WorkloadError(f"{place}: the query must be an object of named fields, got {_short(query)}")
    if isinstance(types, list) and types:
        types = types[0]
    if not isinstance(types, str) or not types:
        raise WorkloadError(f"{place}: the types must be a list of names such as ['softmax', 'bf16'], got {_short(raw[1])}")
    kind = types.lower()
    return Entry(kind=kind, query=query, place=f"{place} ({kind})")


def _short(value: Any) -> str:
    text = repr(value)
    longest = 60
    return text if len(text) <= longest else f"{text[:longest]}…"


def _whole(entry: Entry, field: str, low: int = 1) -> int:
    """A whole number from a query."""
    if field not in entry.query:
        raise WorkloadError(f"{entry.place}: field {field!r} is missing; it must be a whole number of at least {low}")
    value = entry.query[field]
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]  # stride and padding may be written per axis
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value < LARGEST_DIMENSION and value == int(value)
    if not good:
        limits = f"a whole number from {low} to {LARGEST_DIMENSION:.0e}"
        raise WorkloadError(f"{entry.place}: {field} = {_short(value)} must be {limits}; correct it or trace the model again")
    return int(value)


def _precision(entry: Entry, field: str) -> str:
    value = entry.query.get(field)
    precision = canonical_precision(value) if isinstance(value, str) else None
    if precision is None:
        raise WorkloadError(f"{entry.place}: {field} = {_short(value)} is not a known precision; write bf16, fp16, fp32, …")
    return precision


def _unknown_operators(entries: list[Entry], order: list[int], known: list[bool]) -> tuple[UnknownOperator, ...]:
    if all(known):
        return ()
    counts = Counter(order)
    return tuple(
        UnknownOperator(name=entry.kind, count=counts[i], elements=_stated_elements(entry))
        for i, entry in enumerate(entries)
        if not known[i]
    )


def _stated_elements(entry: Entry) -> float:
    """Elements that an unknown entry states by the usual names, 0 where it states none."""
    size = entry.query.get("dim")
    rows = entry.query.get("batch", 1)
    numbers = [value for value in (size, rows) if isinstance(value, int) and not isinstance(value, bool) and 0 < value < LARGEST_DIMENSION]
    return float(numbers[0]) * numbers[1] if len(numbers) == 2 else 0.0


def _assumptions(entries: list[Entry], order: list[int], known: list[bool]) -> tuple[str, ...]:
    """What is modelled although the list leaves it open."""
    counts = Counter(order)
    lines = []
    plain: Counter[str] = Counter()
    fused = 0
    for i, entry in enumerate(entries):
        if not known[i]:
            continue
        name = entry.query.get("op")
        if entry.kind == "elementwise" and isinstance(name, str) and _elementwise_meaning(name) is None:
            plain[name] += counts[i]
        if entry.query.get("fusion") is True:
            fused += counts[i]
    for name, count in plain.items():
        lines.append(f"element-wise operator {name!r} ×{count} is unknown and taken as one that reads and writes one tensor")
    if fused:
        lines.append(f"{fused} operators are marked as fused; they are taken as separate kernels, which overstates their traffic")
    return tuple(lines)


# Which side of a product holds the tokens, and which products are batched ----------------------------------------


def _product_roles(entries: list[Entry], order: Sequence[int]) -> dict[int, str]:
    """The role of every gemm entry: "bmm", "linear" (tokens in dimN) or "conv1d" (tokens in dimM)."""
    products = {i: _product(entry) for i, entry in enumerate(entries) if entry.kind == "gemm"}
    attention = _attention_products(entries, order, products)
    roles = {i: "bmm" for i, product in products.items() if product.batch > 1 or product.depth == 1 or i in attention}
    layers = {i: product for i, product in products.items() if i not in roles}
    tokens = _token_counts(entries, layers, order)
    sides = {i: (p.rows in tokens, p.columns in tokens) for i, p in layers.items()}
    rows_win = sum(side == (True, False) for side in sides.values()) > sum(side == (False, True) for side in sides.values())
    for i, (in_rows, in_columns) in sides.items():
        tokens_in_rows = rows_win if in_rows == in_columns else in_rows
        roles[i] = "conv1d" if tokens_in_rows else "linear"
    return roles


def _product(entry: Entry) -> Product:
    return Product(*(_whole(entry, field) for field in ("batch", "dimM", "dimN", "dimK")))


def _attention_products(entries: list[Entry], order: Sequence[int], products: dict[int, Product]) -> set[int]:
    """Products on both sides of a softmax over the first one's result: attention, also with one head."""
    if all(product.batch > 1 for product in products.values()):
        return set()
    found: set[int] = set()
    seen: set[tuple[int, int, int]] = set()
    for position, number in enumerate(order):
        if not entries[number].kind.startswith("softmax"):
            continue
        before = _nearest_product(entries, order, range(position - 1, -1, -1))
        after = _nearest_product(entries, order, range(position + 1, len(order)))
        if before is None or after is None or (before, number, after) in seen:
            continue
        seen.add((before, number, after))
        score, context = products[before], products[after]
        rows, dim = _whole(entries[number], "batch"), _whole(entries[number], "dim")
        if score.batch * score.rows == rows and score.columns == dim == context.depth and score.rows == context.rows:
            found |= {before, after}
    return found


def _nearest_product(entries: list[Entry], order: Sequence[int], positions: Iterable[int]) -> int | None:
    """The first gemm along `positions`, with nothing but element-wise work on the way."""
    for position in positions:
        kind = entries[order[position]].kind
        if kind == "gemm":
            return order[position]
        if kind != "elementwise":
            return None
    return None


def _token_counts(entries: list[Entry], layers: dict[int, Product], order: Sequence[int]) -> set[int]:
    """Numbers of tokens: rows of layer norms, or else the dimension that most linear layers share."""
    rows = {_whole(entry, "batch") for entry in entries if entry.kind.startswith("layernorm")}
    if rows or not layers:
        return rows
    shared: Counter[int] = Counter()
    counts = Counter(order)
    for i, product in layers.items():
        for size in {product.rows, product.columns}:
            shared[size] += counts[i]
    most = max(shared.values())
    winners = {size for size, count in shared.items() if count == most}
    return winners if len(winners) == 1 else set()


# Entries → operators ------------------------------------------------------------------------------------------------


def _operator(entry: Entry, role: str) -> Operator:
    return READERS[entry.kind](entry, role)


def _read_gemm(entry: Entry, role: str) -> Operator:
    product = _product(entry)
    precision = _precision(entry, "precM")
    out = _precision(entry, "precA") if "precA" in entry.query else precision
    m, n = (product.columns, product.rows) if role == "linear" else (product.rows, product.columns)
    return make_operator(
        "gemm",
        "bmm" if role == "bmm" else "linear",
        precision,
        where=entry.place,
        batch=product.batch,
        m=m,
        n=n,
        k=product.depth,
        precision_out="" if out == precision else out,
        cuda_cores=_on_cuda_cores(entry),
    )


def _on_cuda_cores(entry: Entry) -> bool:
    tensor_cores = entry.query.get("useTensorCore", True)
    if not isinstance(tensor_cores, bool):
        raise WorkloadError(f"{entry.place}: useTensorCore = {_short(tensor_cores)} must be true or false")
    return not tensor_cores


def _read_conv(entry: Entry, _role: str) -> Operator:
    """A convolution with the real image; a width or a group count that dimM and dimK imply is taken from there."""
    batch, channels, height = (_whole(entry, field) for field in ("b", "c", "hw"))
    filters, kernel, stride = (_whole(entry, field) for field in ("m", "rs", "stride"))
    padding = _whole(entry, "padding", low=0)
    outputs, depth = _whole(entry, "dimM"), _whole(entry, "dimK")
    rows = (height + 2 * padding - kernel) // stride + 1
    if rows < 1:
        raise WorkloadError(f"{entry.place}: rs = {kernel} is larger than the padded image, hw + 2·padding = {height + 2 * padding}")
    if outputs % (batch * rows):
        raise WorkloadError(f"{entry.place}: dimM = {outputs} is not b · {rows} output rows · columns, with b = {batch}; correct one")
    columns = outputs // (batch * rows)
    width = height if columns == rows else (columns - 1) * stride + kernel - 2 * padding
    groups = _whole(entry, "groups") if "groups" in entry.query else 1
    taps = channels * kernel * kernel
    if groups == 1 and depth != taps:
        if taps % depth:
            raise WorkloadError(f"{entry.place}: dimK = {depth} does not fit c · rs² = {taps}; correct one")
        groups = taps // depth
    if _whole(entry, "dimN") != filters:
        raise WorkloadError(f"{entry.place}: dimN = {entry.query['dimN']} and m = {filters} must agree")
    return make_operator(
        "conv",
        "depthwise" if groups > 1 and groups == channels else "conv2d",
        _precision(entry, "precM"),
        where=entry.place,
        batch=batch,
        channels=channels,
        height=height,
        width=width,
        filters=filters,
        kernel_h=kernel,
        kernel_w=kernel,
        stride=stride,
        padding=padding,
        groups=groups,
        cuda_cores=_on_cuda_cores(entry),
    )


def _read_elementwise(entry: Entry, _role: str) -> Operator:
    name = entry.query.get("op")
    if not isinstance(name, str):
        raise WorkloadError(f"{entry.place}: op = {_short(name)} must be a name such as 'pointwise_add'")
    size = _whole(entry, "dim")
    operator, reads, out = _elementwise_meaning(name) or ("other", 1, "")
    return make_operator(
        "elementwise", operator, _precision(entry, "prec"), where=entry.place, elements=size, reads=size * reads, precision_out=out
    )


def _elementwise_meaning(name: str) -> tuple[str, int, str] | None:
    """Our operator, tensors read and output precision of an element-wise name; None where it is unknown."""
    if name in ELEMENTWISE:
        return (*ELEMENTWISE[name], "")
    if name.startswith(TYPECAST):
        out = canonical_precision(name.removeprefix(TYPECAST))
        return ("typecast", 1, out) if out else None
    return None


def _read_rows(family: str, operator: str) -> Callable[[Entry, str], Operator]:
    def read(entry: Entry, _role: str) -> Operator:
        rows, dim = _whole(entry, "batch"), _whole(entry, "dim")
        return make_operator(family, operator, _precision(entry, "prec"), where=entry.place, rows=rows, dim=dim)

    return read


def _read_attention(entry: Entry, _role: str) -> Operator:
    """Fused attention.  The format does not say whether it is causal; a field `causal` or `is_causal` does."""
    query = entry.query
    sequence = "batch_size" if "batch_size" in query else "batch"
    heads_field = "num_heads" if "num_heads" in query else "n_head"
    heads = _whole(entry, heads_field)
    ratio = _whole(entry, "multi_query_ratio") if "multi_query_ratio" in query else 1
    if heads % ratio:
        raise WorkloadError(f"{entry.place}: multi_query_ratio = {ratio} must divide {heads_field} = {heads}")
    causal = query.get("is_causal", query.get("causal", False))
    if not isinstance(causal, bool):
        raise WorkloadError(f"{entry.place}: causal = {_short(causal)} must be true or false")
    length = _whole(entry, "seq_len")
    return make_operator(
        "attention",
        "prefill",
        _precision(entry, "precM" if "precM" in query else "prec"),
        where=entry.place,
        batch=_whole(entry, sequence),
        queries=length,
        context=length,
        heads=heads,
        kv_heads=heads // ratio,
        head_dim=_whole(entry, "head_dim"),
        window=0,
        causal=int(causal),
    )


READERS: Final[dict[str, Callable[[Entry, str], Operator]]] = {
    "gemm": _read_gemm,
    "conv2d": _read_conv,
    "elementwise": _read_elementwise,
    "softmax": _read_rows("softmax", "softmax"),
    "softmax_fusion": _read_rows("softmax", "softmax"),
    "layernorm": _read_rows("norm", "layernorm"),
    "layernorm_fusion": _read_rows("norm", "layernorm"),
    "sdpa": _read_attention,
    "flashattention_v2": _read_attention,
}
"""Kinds of entries and how each is read."""
