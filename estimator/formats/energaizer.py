"""Operator lists of the EnergAIzer artifact: [query, types] pairs in execution order.

Matrix products are written there as C[dimM, dimN] with dimK reduced.  A linear layer puts its outputs into dimM and
its tokens into dimN, a `Conv1D` layer (GPT-2) the other way round; which of the two is told by the number of tokens,
found from the normalisations.  Element-wise entries give the size of the larger input and whether one or two
tensors came in.  Convolutions are square, and depthwise ones are written as dense.
Source: the artifact's workload files and its trace parser (arXiv 2604.20105).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import filterfalse
from typing import Any, Final, NamedTuple

import numpy as np

from estimator.errors import WorkloadError
from estimator.formats.entries import LARGEST_DIMENSION, Entry, checked_entries, precision_of, short, whole
from estimator.forms.host_shares import INNER, LIGHT
from estimator.listing import Listing, index_array
from estimator.quantities import BYTES_PER_ELEMENT, canonical_precision
from estimator.workload import Operator, UnknownOperator, make_operator

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

FUSED_ATTENTION: Final = ("sdpa", "flashattention_v2")
ENCODER: Final = "an encoder: every token sees every other"
DECODER: Final = "a decoder: causal"


class Product(NamedTuple):
    """A matrix product as listed, before it is known which side holds the tokens."""

    batch: int
    rows: int
    columns: int
    depth: int


def read_energaizer(values: Sequence[Any], order: Sequence[int], where: str, sequences_hint: int = 0) -> Listing:
    """A Listing from the distinct items of an EnergAIzer list and their order.

    `where` names the file in messages, which also say the entry, the field, its value and the remedy.
    Raises WorkloadError for anything that is not such a list, and where no entry is of a known kind.
    """
    if not order:
        raise WorkloadError(f"{where}: the list is empty; a workload needs at least one operator")
    entries = checked_entries(values, order, where)
    known = [entry.kind in READERS for entry in entries]
    counts: list[int] = np.bincount(index_array(order), minlength=len(entries)).tolist()
    unknown = _unknown_operators(entries, counts, known)
    kept = tuple(i for i in order if known[i]) if unknown else tuple(order)
    if not kept:
        names = ", ".join(sorted({entry.kind for entry in entries}))
        raise WorkloadError(f"{where}: no operator of a known kind, only {names}; known: {', '.join(READERS)}")
    roles = _product_roles(entries, kept, counts) | _attention_roles(entries, kept)
    operators = [_operator(entry, roles.get(i, "")) if known[i] else None for i, entry in enumerate(entries)]
    place = {index: position for position, index in enumerate(i for i, operator in enumerate(operators) if operator is not None)}
    return Listing(
        operators=tuple(operator for operator in operators if operator is not None),
        order=tuple(place[i] for i in kept) if unknown else kept,
        counts=tuple(float(counts[i]) for i in place),
        unknown=unknown,
        warnings=_assumptions(entries, counts, known),
        notes=_notes(roles),
        sequences_hint=sequences_hint,
    )


def _unknown_operators(entries: list[Entry], counts: Sequence[int], known: list[bool]) -> tuple[UnknownOperator, ...]:
    if all(known):
        return ()
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


def _assumptions(entries: list[Entry], counts: Sequence[int], known: list[bool]) -> tuple[str, ...]:
    """What is modelled although the list leaves it open."""
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


def _notes(roles: dict[int, str]) -> tuple[str, ...]:
    decided = {role for role in roles.values() if role in (ENCODER, DECODER)}
    return tuple(f"fused attention is taken as that of {role}" for role in decided)


# Which side of a product holds the tokens, and which products are batched ----------------------------------------


def _product_roles(entries: list[Entry], order: Sequence[int], counts: Sequence[int]) -> dict[int, str]:
    """The role of every gemm entry: "bmm", "linear" (tokens in dimN) or "conv1d" (tokens in dimM)."""
    products = {i: _product(entry) for i, entry in enumerate(entries) if entry.kind == "gemm"}
    attention = _attention_products(entries, order, products)
    roles = {i: "bmm" for i, product in products.items() if product.batch > 1 or product.depth == 1 or i in attention}
    layers = {i: product for i, product in products.items() if i not in roles}
    tokens = _token_counts(entries, layers, counts)
    sides = {i: (p.rows in tokens, p.columns in tokens) for i, p in layers.items()}
    rows_win = sum(side == (True, False) for side in sides.values()) > sum(side == (False, True) for side in sides.values())
    for i, (in_rows, in_columns) in sides.items():
        tokens_in_rows = rows_win if in_rows == in_columns else in_rows
        roles[i] = "conv1d" if tokens_in_rows else "linear"
    return roles


def _attention_roles(entries: list[Entry], order: Sequence[int]) -> dict[int, str]:
    """The role of fused attention that does not state it: an encoder has image patches or ends with a pooler's tanh."""
    open_questions = [
        i for i, entry in enumerate(entries) if entry.kind in FUSED_ATTENTION and not {"causal", "is_causal"} & entry.query.keys()
    ]
    encoder = any(entry.kind == "conv2d" for entry in entries) or entries[order[-1]].query.get("op") == "tanh"
    return dict.fromkeys(open_questions, ENCODER if encoder else DECODER)


def _product(entry: Entry) -> Product:
    return Product(*(whole(entry, field) for field in ("batch", "dimM", "dimN", "dimK")))


def _attention_products(entries: list[Entry], order: Sequence[int], products: dict[int, Product]) -> set[int]:
    """Products on both sides of a softmax over the first one's result: attention, also with one head."""
    if all(product.batch > 1 for product in products.values()):
        return set()
    kinds = [entry.kind for entry in entries]
    light = {number for number, kind in enumerate(kinds) if kind == "elementwise"}
    solid = list(filterfalse(light.__contains__, order))  # nothing but element-wise work may stand between
    found: set[int] = set()
    for before, number, after in dict.fromkeys(zip(solid, solid[1:], solid[2:], strict=False)):
        if not kinds[number].startswith("softmax") or kinds[before] != "gemm" or kinds[after] != "gemm":
            continue
        score, context = products[before], products[after]
        rows, dim = whole(entries[number], "batch"), whole(entries[number], "dim")
        if score.batch * score.rows == rows and score.columns == dim == context.depth and score.rows == context.rows:
            found |= {before, after}
    return found


def _token_counts(entries: list[Entry], layers: dict[int, Product], counts: Sequence[int]) -> set[int]:
    """Numbers of tokens: rows of layer norms, or else the dimension that most linear layers share."""
    rows = {whole(entry, "batch") for entry in entries if entry.kind.startswith("layernorm")}
    if rows or not layers:
        return rows
    shared: Counter[int] = Counter()
    for i, product in layers.items():
        for size in {product.rows, product.columns}:
            shared[size] += counts[i]
    most = max(shared.values())
    winners = {size for size, count in shared.items() if count == most}
    return winners if len(winners) == 1 else set()


# Entries → operators ------------------------------------------------------------------------------------------------
# Numbers from `whole` are whole and neither too small nor too large: of families whose sizes go together with all others, operators are
# made without asking for that again.


def _operator(entry: Entry, role: str) -> Operator:
    return READERS[entry.kind](entry, role)


def _read_gemm(entry: Entry, role: str) -> Operator:
    product = _product(entry)
    precision = precision_of(entry, "precM")
    out = precision_of(entry, "precA") if "precA" in entry.query else precision
    if precision == out == "fp32" and entry.query.get("useTensorCore") is True:
        precision = out = "tf32"  # tensor cores take fp32 operands in this form alone
    m, n = (product.columns, product.rows) if role == "linear" else (product.rows, product.columns)
    return Operator(
        family="gemm",
        operator="bmm" if role == "bmm" else "linear",
        precision=precision,
        shape=(float(product.batch), float(m), float(n), float(product.depth)),
        precision_out="" if out == precision else out,
        cuda_cores=_on_cuda_cores(entry),
    )


def _on_cuda_cores(entry: Entry) -> bool:
    tensor_cores = entry.query.get("useTensorCore", True)
    if not isinstance(tensor_cores, bool):
        raise WorkloadError(f"{entry.place}: useTensorCore = {short(tensor_cores)} must be true or false")
    return not tensor_cores


def _read_conv(entry: Entry, _role: str) -> Operator:
    """A convolution with the real image; a width or a group count that dimM and dimK imply is taken from there."""
    batch, channels, height = (whole(entry, field) for field in ("b", "c", "hw"))
    filters, kernel, stride = (whole(entry, field) for field in ("m", "rs", "stride"))
    padding = whole(entry, "padding", low=0)
    outputs, depth = whole(entry, "dimM"), whole(entry, "dimK")
    rows = (height + 2 * padding - kernel) // stride + 1
    if rows < 1:
        raise WorkloadError(f"{entry.place}: rs = {kernel} is larger than the padded image, hw + 2·padding = {height + 2 * padding}")
    if outputs % (batch * rows):
        raise WorkloadError(f"{entry.place}: dimM = {outputs} is not b · {rows} output rows · columns, with b = {batch}; correct one")
    columns = outputs // (batch * rows)
    width = height if columns == rows else (columns - 1) * stride + kernel - 2 * padding
    groups = whole(entry, "groups") if "groups" in entry.query else 1
    taps = channels * kernel * kernel
    if groups == 1 and depth != taps:
        if taps % depth:
            raise WorkloadError(f"{entry.place}: dimK = {depth} does not fit c · rs² = {taps}; correct one")
        groups = taps // depth
    if whole(entry, "dimN") != filters:
        raise WorkloadError(f"{entry.place}: dimN = {entry.query['dimN']} and m = {filters} must agree")
    return make_operator(
        "conv",
        "depthwise" if groups > 1 and groups == channels else "conv2d",
        precision_of(entry, "precM"),
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
        raise WorkloadError(f"{entry.place}: op = {short(name)} must be a name such as 'pointwise_add'")
    size = whole(entry, "dim")
    operator, reads, out = _elementwise_meaning(name) or ("other", 1, "")
    precision = precision_of(entry, "prec")
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
    if name.startswith(TYPECAST):
        out = canonical_precision(name.removeprefix(TYPECAST))
        return ("typecast", 1, out) if out else None
    return None


def _read_rows(family: str, operator: str) -> Callable[[Entry, str], Operator]:
    def read(entry: Entry, _role: str) -> Operator:
        shape = float(whole(entry, "batch")), float(whole(entry, "dim"))
        return Operator(family=family, operator=operator, precision=precision_of(entry, "prec"), shape=shape)

    return read


def _read_attention(entry: Entry, role: str) -> Operator:
    """Fused attention.  A field `causal` or `is_causal`, which the artifact does not write, goes before the role."""
    query = entry.query
    sequence = "batch_size" if "batch_size" in query else "batch"
    heads_field = "num_heads" if "num_heads" in query else "n_head"
    heads = whole(entry, heads_field)
    ratio = whole(entry, "multi_query_ratio") if "multi_query_ratio" in query else 1
    if heads % ratio:
        raise WorkloadError(f"{entry.place}: multi_query_ratio = {ratio} must divide {heads_field} = {heads}")
    causal = query.get("is_causal", query.get("causal", role == DECODER))
    if not isinstance(causal, bool):
        raise WorkloadError(f"{entry.place}: causal = {short(causal)} must be true or false")
    length = whole(entry, "seq_len")
    return make_operator(
        "attention",
        "prefill",
        precision_of(entry, "precM" if "precM" in query else "prec"),
        where=entry.place,
        batch=whole(entry, sequence),
        queries=length,
        context=length,
        heads=heads,
        kv_heads=heads // ratio,
        head_dim=whole(entry, "head_dim"),
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
    **dict.fromkeys(FUSED_ATTENTION, _read_attention),
}
"""Kinds of entries and how each is read."""
