"""Operator lists of the EnergAIzer artifact: [query, types] pairs in execution order.

Matrix products are written there as C[dimM, dimN] with dimK reduced.  A linear layer puts its outputs into dimM and
its tokens into dimN, a `Conv1D` layer (GPT-2) the other way round; which of the two is told by the number of tokens,
found from the normalisations.  Element-wise entries give the size of the larger input and whether one or two
tensors came in.  Convolutions are square, and depthwise ones are written as dense.
Source: the artifact's workload files and its trace parser (arXiv 2604.20105).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from estimator.transforms import INNER, LIGHT
from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.listing import Listing, index_array
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, canonical_precision
from estimator.vocabulary.workload import Operator, UnknownOperator, make_operator

BETWEEN_PAIRS: Final = "]], ["
"""How a list of pairs, whose second item is a list, goes on in Python's JSON."""

LARGEST_DIMENSION: Final = 1e15
"""Above this a dimension is a mistake: 10^15 elements of one byte are a petabyte."""

ELEMENTWISE: Final[dict[str, tuple[str, int]]] = {
    "pointwise_add": ("add", 2),
    "pointwise_mul": ("mul", 2),
    "unspecified_tensor": ("other", 2),
    "unspecified_scalar": ("scalar_pow", 1),
    **{name: (name, 1) for name in ("scalar_add", "scalar_mul", "relu", "gelu", "silu", "tanh", "sigmoid")},
}
"""Element-wise names: our operator and how many tensors of the full size it reads."""

TYPECAST: Final = "typecast_to_"
ENCODER: Final = "an encoder: every token sees every other"
DECODER: Final = "a decoder: causal"


class Entry(NamedTuple):
    """One distinct entry of a list, and the place of its first occurrence for messages."""

    kind: str
    query: dict[str, Any]
    place: str

    def fault(self, field: str, wanted: str) -> WorkloadError:
        """What is wrong with a field."""
        return WorkloadError(
            f"{self.place}: {field} = {_short(self.query.get(field))} must be {wanted}; correct it or trace the model again"
        )

    def whole(self, field: str, low: int = 1) -> int:
        """A whole number; stride and padding may be written per axis."""
        value = self.query.get(field)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < LARGEST_DIMENSION or value != int(value):
            raise self.fault(field, f"a whole number from {low} to {LARGEST_DIMENSION:.0e}")
        return int(value)

    def wholes(self, *fields: str) -> list[int]:
        """Several of them."""
        return [self.whole(field) for field in fields]

    def precision(self, *fields: str) -> str:
        """The precision of the first field that is there, by its own name."""
        field = next((name for name in fields if name in self.query), fields[0])
        value = self.query.get(field)
        precision = canonical_precision(value) if isinstance(value, str) else None
        if precision is None:
            raise self.fault(field, "a known precision: bf16, fp16, fp32, …")
        return precision

    def flag(self, field: str, default: bool) -> bool:
        """True or false."""
        value = self.query.get(field, default)
        if not isinstance(value, bool):
            raise self.fault(field, "true or false")
        return value


class Product(NamedTuple):
    """A matrix product as listed, before it is known which side holds the tokens."""

    batch: int
    rows: int
    columns: int
    depth: int


def distinct_items(text: str) -> tuple[list[Any], list[int]] | None:
    """The distinct items of a JSON list in first-seen order, and for each place of the list the number of its item; None for no list.

    A traced model repeats a few dozen entries a thousand times: each distinct text between two entries is decoded once.  Where a list
    is laid out otherwise, so that pieces are no JSON, it is decoded as a whole.  Raises ValueError for what is not JSON.
    """
    if not text.startswith("["):
        return None
    numbers: dict[str, int] = {}
    if text.startswith("[[") and text.endswith("]]]"):
        order = [numbers.setdefault(piece, len(numbers)) for piece in text[2:-3].split(BETWEEN_PAIRS)]
        try:
            return [parse_json(f"[{piece}]]") for piece in numbers], order
        except ValueError:
            numbers.clear()
    values = parse_json(text)
    order = [numbers.setdefault(repr(value), len(numbers)) for value in values]
    return [values[place] for place in _first_places(order)], order


def _first_places(order: Sequence[int]) -> list[int]:
    """Where each number, given in the order in which items are first seen, stands first."""
    first = dict(zip(reversed(order), range(len(order) - 1, -1, -1), strict=True))
    return [first[number] for number in range(len(first))]


def read_energaizer(values: Sequence[Any], order: Sequence[int], where: str) -> Listing:
    """A Listing from the distinct items of an EnergAIzer list and their order.

    `where` names the file in messages, which also say the entry, the field, its value and the remedy.
    Raises WorkloadError for anything that is not such a list, and where no entry is of a known kind.
    """
    if not order:
        raise WorkloadError(f"{where}: the list is empty; a workload needs at least one operator")
    entries = [_checked_entry(value, f"{where}: entry {place}") for value, place in zip(values, _first_places(order), strict=True)]
    counts: list[int] = np.bincount(index_array(order), minlength=len(entries)).tolist()
    known = [i for i, entry in enumerate(entries) if entry.kind in READERS]
    place = {i: number for number, i in enumerate(known)}
    if not known:
        names = ", ".join(sorted({entry.kind for entry in entries}))
        raise WorkloadError(f"{where}: no operator of a known kind, only {names}; known: {', '.join(READERS)}")
    kept = order if len(known) == len(entries) else [i for i in order if i in place]
    roles = _product_roles(entries) | _attention_roles(entries, kept)
    return Listing(
        operators=tuple(READERS[entries[i].kind](entries[i], roles.get(i, "")) for i in known),
        order=tuple(kept) if kept is order else tuple(place[i] for i in kept),
        counts=tuple(float(counts[i]) for i in known),
        unknown=tuple(UnknownOperator(name=entry.kind, count=counts[i]) for i, entry in enumerate(entries) if i not in place),
        warnings=tuple(_assumptions([(entries[i], counts[i]) for i in known])),
        notes=tuple(dict.fromkeys(f"fused attention is taken as that of {role}" for role in roles.values() if role in (ENCODER, DECODER))),
    )


def _checked_entry(raw: Any, place: str) -> Entry:
    if not isinstance(raw, list) or len(raw) != 2 or not isinstance(raw[0], dict):
        raise WorkloadError(f"{place} must be a pair [query, types], the query an object of named fields, got {_short(raw)}")
    query, types = raw
    kind = types[0] if isinstance(types, list) and types else types
    if not isinstance(kind, str) or not kind:
        raise WorkloadError(f"{place}: the types must be a list of names such as ['softmax', 'bf16'], got {_short(types)}")
    return Entry(kind=kind.lower(), query=query, place=f"{place} ({kind.lower()})")


def _short(value: Any) -> str:
    return f"{value!r:.60}"


def _assumptions(entries: list[tuple[Entry, int]]) -> list[str]:
    """What is modelled although the list leaves it open."""
    plain: Counter[str] = Counter()
    for entry, count in entries:
        if entry.kind == "elementwise" and _elementwise_meaning(name := str(entry.query.get("op"))) is None:
            plain[name] += count
    lines = [
        f"element-wise operator {name!r} ×{count} is unknown and taken as one that reads and writes one tensor"
        for name, count in plain.items()
    ]
    fused = sum(count for entry, count in entries if entry.query.get("fusion") is True)
    if fused:
        lines.append(f"{fused} operators are marked as fused; they are taken as separate kernels, which overstates their traffic")
    return lines


# Which side of a product holds the tokens, and which products are batched ----------------------------------------


def _product_roles(entries: list[Entry]) -> dict[int, str]:
    """The role of every gemm entry: "bmm", "linear" (tokens in dimN) or "conv1d" (tokens in dimM).

    The number of tokens is that of the layer norms' rows; where it stands on both sides or on none, most other layers decide.
    """
    products = {i: _product(entry) for i, entry in enumerate(entries) if entry.kind == "gemm"}
    tokens = {entry.whole("batch") for entry in entries if entry.kind.startswith("layernorm")}
    layers = {i: (p.rows in tokens, p.columns in tokens) for i, p in products.items() if p.batch == 1 and p.depth > 1}
    tally = Counter(layers.values())
    rows_win = tally[True, False] > tally[False, True]
    sides = {i: (rows_win if in_rows == in_columns else in_rows) for i, (in_rows, in_columns) in layers.items()}
    return {i: "bmm" if i not in sides else "conv1d" if sides[i] else "linear" for i in products}


def _attention_roles(entries: list[Entry], order: Sequence[int]) -> dict[int, str]:
    """The role of fused attention that does not state it: an encoder has image patches or ends with a pooler's tanh."""
    unclear = [
        i
        for i, entry in enumerate(entries)
        if READERS.get(entry.kind) is _read_attention and not {"causal", "is_causal"} & entry.query.keys()
    ]
    encoder = any(entry.kind == "conv2d" for entry in entries) or entries[order[-1]].query.get("op") == "tanh"
    return dict.fromkeys(unclear, ENCODER if encoder else DECODER)


def _product(entry: Entry) -> Product:
    return Product(*entry.wholes("batch", "dimM", "dimN", "dimK"))


# Entries → operators ------------------------------------------------------------------------------------------------
# Numbers from `whole` are whole and neither too small nor too large: of families whose sizes go together with all others, operators are
# made without asking for that again.


def _read_gemm(entry: Entry, role: str) -> Operator:
    product = _product(entry)
    precision = entry.precision("precM")
    out = entry.precision("precA", "precM")
    if precision == out == "fp32" and entry.query.get("useTensorCore") is True:
        precision = out = "tf32"  # tensor cores take fp32 operands in this form alone
    m, n = (product.columns, product.rows) if role == "linear" else (product.rows, product.columns)
    return Operator(
        family="gemm",
        operator="bmm" if role == "bmm" else "linear",
        precision=precision,
        shape=(float(product.batch), float(m), float(n), float(product.depth)),
        precision_out="" if out == precision else out,
        cuda_cores=not entry.flag("useTensorCore", True),
    )


def _read_conv(entry: Entry, _role: str) -> Operator:
    """A convolution with the real image; a width or a group count that dimM and dimK imply is taken from there."""
    batch, channels, height, filters, kernel, stride = entry.wholes("b", "c", "hw", "m", "rs", "stride")
    padding, (outputs, depth) = entry.whole("padding", low=0), entry.wholes("dimM", "dimK")
    rows = (height + 2 * padding - kernel) // stride + 1
    if rows < 1:
        raise entry.fault("rs", f"at most the padded image, hw + 2·padding = {height + 2 * padding}")
    if outputs % (batch * rows):
        raise entry.fault("dimM", f"b · {rows} output rows · columns, with b = {batch}")
    columns = outputs // (batch * rows)
    groups, taps = entry.whole("groups") if "groups" in entry.query else 1, channels * kernel * kernel
    if groups == 1 and taps % depth:
        raise entry.fault("dimK", f"a divisor of c · rs² = {taps}")
    if entry.whole("dimN") != filters:
        raise entry.fault("dimN", f"m = {filters}")
    groups = taps // depth if groups == 1 else groups
    return make_operator(
        "conv",
        "depthwise" if groups > 1 and groups == channels else "conv2d",
        entry.precision("precM"),
        where=entry.place,
        batch=batch,
        channels=channels,
        height=height,
        width=height if columns == rows else (columns - 1) * stride + kernel - 2 * padding,
        filters=filters,
        kernel_h=kernel,
        kernel_w=kernel,
        stride=stride,
        padding=padding,
        groups=groups,
        cuda_cores=not entry.flag("useTensorCore", True),
    )


def _read_elementwise(entry: Entry, _role: str) -> Operator:
    name = entry.query.get("op")
    if not isinstance(name, str):
        raise entry.fault("op", "a name such as 'pointwise_add'")
    size = entry.whole("dim")
    operator, reads, out = _elementwise_meaning(name) or ("other", 1, "")
    precision = entry.precision("prec")
    # The list holds only the two conversions around an fp32 softmax; the widening one runs inside the softmax call.
    inside = out and BYTES_PER_ELEMENT[out] > BYTES_PER_ELEMENT[precision]
    return Operator(
        family="elementwise",
        operator=operator,
        precision=precision,
        shape=(float(size), float(size * reads)),
        precision_out="" if out == precision else out,
        host_share=INNER if inside else LIGHT,
    )


def _elementwise_meaning(name: str) -> tuple[str, int, str] | None:
    """Our operator, tensors read and output precision of an element-wise name; None where it is unknown."""
    if name in ELEMENTWISE:
        return (*ELEMENTWISE[name], "")
    out = canonical_precision(name.removeprefix(TYPECAST)) if name.startswith(TYPECAST) else None
    return ("typecast", 1, out) if out else None


def _read_rows(family: str, operator: str) -> Callable[[Entry, str], Operator]:
    def read(entry: Entry, _role: str) -> Operator:
        rows, dim = entry.wholes("batch", "dim")
        return Operator(family=family, operator=operator, precision=entry.precision("prec"), shape=(float(rows), float(dim)))

    return read


def _read_attention(entry: Entry, role: str) -> Operator:
    """Fused attention.  A field `causal` or `is_causal`, which the artifact does not write, goes before the role."""
    query = entry.query
    heads_field = "num_heads" if "num_heads" in query else "n_head"
    heads, length, head_dim = entry.wholes(heads_field, "seq_len", "head_dim")
    ratio = entry.whole("multi_query_ratio") if "multi_query_ratio" in query else 1
    if heads % ratio:
        raise entry.fault("multi_query_ratio", f"a divisor of {heads_field} = {heads}")
    return make_operator(
        "attention",
        "prefill",
        entry.precision("precM", "prec"),
        where=entry.place,
        batch=entry.whole("batch_size" if "batch_size" in query else "batch"),
        queries=length,
        context=length,
        heads=heads,
        kv_heads=heads // ratio,
        head_dim=head_dim,
        window=0,
        causal=int(entry.flag("is_causal" if "is_causal" in query else "causal", role == DECODER)),
    )


READERS: Final[dict[str, Callable[[Entry, str], Operator]]] = {
    "gemm": _read_gemm,
    "conv2d": _read_conv,
    "elementwise": _read_elementwise,
    **dict.fromkeys(("softmax", "softmax_fusion"), _read_rows("softmax", "softmax")),
    **dict.fromkeys(("layernorm", "layernorm_fusion"), _read_rows("norm", "layernorm")),
    **dict.fromkeys(("sdpa", "flashattention_v2"), _read_attention),
}
"""Kinds of entries and how each is read."""
