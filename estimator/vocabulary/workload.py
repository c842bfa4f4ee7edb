"""Workload and Operator: a computation, independent of any GPU.

An operator is one kernel of a family, with the numbers that the family's equations need.  A workload
is a list of them with counts.  `estimator.formats` reads files, `estimator.completion` adds operators
that a list leaves out.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, make_dataclass, replace
from functools import cache
from itertools import compress
from typing import Annotated, Any, Final, Literal

from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import canonical_precision
from estimator.vocabulary.reader import LEAST_ONE, WHEN_GIVEN, FaultError, Span, Words, read
from estimator.vocabulary.values import frozen

FAMILY_FIELDS: Final = {
    # C[m, n] = A[m, k] · B[k, n], `batch` of them; linear layers: m tokens, n outputs, k inputs.
    "gemm": ("batch", "m", "n", "k"),
    "conv": ("batch", "channels", "height", "width", "filters", "kernel_h", "kernel_w", "stride", "padding", "groups"),
    # `queries` new tokens attend to `context` tokens (prefill: equal); window 0 means unlimited; causal 0 or 1.
    "attention": ("batch", "queries", "context", "heads", "kv_heads", "head_dim", "window", "causal"),
    # Latent attention: one vector of LATENT numbers a token is key and value of all heads once they are absorbed (decode).
    "mla": ("batch", "queries", "context", "heads"),
    # One GPU of a group of ep · tp GPUs, which `tokens` enter: it has experts / ep experts of inner size inter / tp, each with an up and a
    # down product, and a gate if `gated` is 1.  skew: exponent of the distribution of their loads; 0 means equal loads.
    "moe": ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep", "skew", "gated"),
    # Among GPUs of one node.  message_bytes: all_reduce: the tensor that each GPU holds; all_gather: the result; reduce_scatter: the input
    # of a GPU; all_to_all: all that a GPU sends, its own part included.
    "communication": ("message_bytes", "num_gpus"),
    "quantise": ("rows", "dim"),
    "softmax": ("rows", "dim"),
    "norm": ("rows", "dim"),
    "reduction": ("rows", "dim"),
    # `elements` are written, `reads` are read, all inputs together (an addition of two tensors reads 2 · elements).
    "elementwise": ("elements", "reads"),
    "copy": ("elements", "reads"),
}
"""Shape fields of each kernel family, in the order in which `Operator.shape` holds them."""

FAMILY_OPERATORS: Final = {
    "gemm": ("linear", "bmm"),
    "conv": ("conv2d", "depthwise"),
    "attention": ("prefill", "decode"),
    "mla": ("mla_prefill", "mla_decode"),
    "moe": ("moe",),
    "communication": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    "quantise": ("quantise_static", "compute_scale"),
    "softmax": ("softmax",),
    "norm": ("layernorm", "rmsnorm", "batchnorm"),
    "reduction": ("sum", "mean", "max", "moments"),
    "elementwise": (
        "add", "mul", "scalar_add", "scalar_mul", "scalar_pow", "scalar_div", "div", "pow",
        "relu", "gelu", "silu", "tanh", "sigmoid", "exp", "where", "typecast", "pool", "dropout", "other",
    ),
    "copy": ("contiguous", "transpose", "layout", "gather", "cat"),
}  # fmt: skip
"""Operators of each family; the family's equations weight them differently."""

TWO_INPUTS: Final = frozenset({"add", "mul", "div", "pow", "where"})
"""Element-wise operators that read two tensors as large as the result, unless one is repeated along a dimension."""

TABLED: Final = frozenset({"mla", "moe", "communication", "quantise"})
"""Families that only tables hold; `collect` measures none of them."""

CACHED: Final = frozenset({"attention", "mla"})
"""Families with a cache of keys and values."""

LIBRARIES: Final = ("trtllm", "vllm", "sglang", "nccl")
"""Libraries whose kernels of one operator and precision differ so much that they are fitted apart.  One fit for two of them errs by 28 %
on fp8 products of a B200 and by 23 % on prefill of an H200; two fits err by 5 and 16 %, and by 3 and 7 %."""

FLASH_ATTENTION: Final = "flash-attention"
"""FlashAttention-2 as PyTorch brings it, on boards where PyTorch prefers cuDNN's kernels; elsewhere it is PyTorch's own choice, ""."""

ONE_FAMILY: Final = {"nccl": "communication", FLASH_ATTENTION: "attention"}
"""Libraries with kernels of a single family."""

CUDNN_HEADS: Final = {"9.0": 256.0, "10.0": 128.0, "10.3": 128.0}
"""Largest heads of the attention that PyTorch leaves to cuDNN, by compute capability: from PyTorch 2.11 on, whose cuDNN is recent enough.
Source: PyTorch, sdp_utils.cpp (check_prefer_cudnn_attention, check_cudnn_tensor_shapes); huggingface/transformers, pull request 48163."""

CONTEXT_PARTS: Final = {"vllm": 4.0, "sglang": 8.0}
"""Parts of a context that blocks of Triton's latent attention decode apart, before Hopper [1]; TensorRT-LLM's, of the tables, divide none
and take 0.12 us a token on an A100, 0.08 on an L40S.  vLLM's take 0.07 on an RTX PRO 6000 (pull request 33529: with 10,000 more tokens on
a GPU the 61 layers take 10.9 ms longer).  Sources: vLLM 0.12 (triton_mla.py, num_kv_splits), SGLang (triton_attention_num_kv_splits)."""

COMPLETED: Final = "completed:"
CORRECTED: Final = "corrected:"
"""Starts of `Operator.origin` for operators that a completion rule added, or that replace a listed one."""

OWN_EXPERTS: Final = (("vllm", "fp8_block"), ("sglang", "fp8_block"))
"""Libraries and formats of experts whose kernels are others than TensorRT-LLM's, and faster; only an L40S has a table of them.  Experts in
4 bits run by the same kernels in all engines, FlashInfer's, which TensorRT-LLM brought, and Marlin; in 16 bits and in fp8 published runs
take the time of TensorRT-LLM's (benchmarks/published.py)."""

TRACED: Final = "traced"
"""`Operator.origin` of traced operators; a colon and a word follow if a rule derived it from the trace."""

LISTED: Final = "listed"
"""`Operator.origin` of operators that a file lists without an origin."""

LARGEST_NUMBERS: Final = {"experts": 2.0**16}
"""Largest numbers of a shape; of a field without one 1e18, elements of whole tensors.  Loads of experts are drawn for each."""

ZERO_ALLOWED: Final = frozenset({"window", "causal", "padding", "skew", "gated"})
FRACTIONAL: Final = frozenset({"reads", "skew"})
"""Shape fields that may be 0, and those that need not be whole."""


@frozen
class Operator:
    """One kernel: family, operator, precision and shape.

    `shape` holds the numbers named by FAMILY_FIELDS[family].  `precision_out` differs from `precision` for
    typecasts; `precision_kv` is the width of cached keys and values.  `host_share` is this kernel's share of
    one framework operator's launch cost (0 for kernels that a library launches by itself).  `origin` says
    the source of the operator: "listed", "completed:RULE" if a completion rule added it, "corrected:RULE" if a
    rule replaced a listed one.  `cuda_cores` is set if a matrix product is known to run without tensor cores.
    `library` is one of LIBRARIES or FLASH_ATTENTION, "" for that of the framework.
    """

    family: str
    operator: str
    precision: str
    shape: tuple[float, ...]
    precision_out: str = ""
    precision_kv: str = ""
    cuda_cores: bool = False
    library: str = ""
    host_share: float = 1.0
    origin: str = "listed"

    def __getitem__(self, field_name: str) -> float:
        return self.shape[FAMILY_FIELDS[self.family].index(field_name)]

    @property
    def out_precision(self) -> str:
        """Precision of the result."""
        return self.precision_out or self.precision

    @property
    def kv_precision(self) -> str:
        """Precision of cached keys and values."""
        return self.precision_kv or self.precision

    def named_shape(self) -> dict[str, float]:
        """The shape by field name."""
        return dict(zip(FAMILY_FIELDS[self.family], self.shape, strict=True))

    @property
    def label(self) -> str:
        """Short readable name: "gemm.linear bf16 512x768x3072"."""
        return f"{self.family}.{self.operator} {self.precision} {'x'.join(f'{value:.15g}' for value in self.shape)}"


def check_precision(name: str) -> None:
    """Refuse the name of an unknown precision."""
    if name and canonical_precision(name) is None:
        raise FaultError(f"= {name!r:.60} is not a known precision; write bf16, fp16, fp32, …")


Precision = Annotated[str, LEAST_ONE, check_precision]
Family = Annotated[str, Words(tuple(FAMILY_FIELDS))]

OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "precision_out": (Annotated[str, check_precision, "of the result, where it differs"], ""),
    "precision_kv": (Annotated[str, check_precision, "of cached keys and values, where it differs"], ""),
    "cuda_cores": (Annotated[bool, "a matrix product that runs without tensor cores"], False),
    "library": (Annotated[str, Words(("", *LIBRARIES, FLASH_ATTENTION)), "library whose kernel runs; the framework's where absent"], ""),
    "host_share": (Annotated[float, Span(0.0, 1e3), "launch cost on the host, relative to a layer of the framework"], 1.0),
    "origin": (Annotated[str, "what listed, traced, added or replaced it; after a colon, the rule that did"], LISTED),
}
"""Optional fields of an operator with their defaults.  No operator costs its host as much as a thousand layers."""


@cache
def entry_of(family: str) -> type:
    """The class with the fields of an operator of a family and its count; made when the first one is read."""
    parts: list[Any] = [("family", Literal[family]), ("operator", Annotated[str, Words(FAMILY_OPERATORS[family])])]
    parts += [("precision", Precision), ("count", Annotated[float, Span(1e-12, 1e12), "how often it runs in one iteration"])]
    for name in FAMILY_FIELDS[family]:
        span = Span(0.0 if name in ZERO_ALLOWED else 1.0, LARGEST_NUMBERS.get(name, 1e18))
        parts.append((name, Annotated[float, span] if name in FRACTIONAL else Annotated[int, span]))
    for name, (kind, default) in OPTIONS.items():
        if name != "precision_kv" or family in CACHED:
            parts.append((name, kind, field(default=default)))
    return make_dataclass(family, parts, kw_only=True, namespace={"__doc__": f"An operator of the family {family}"})


def read_operator(entry: Mapping[str, object]) -> tuple[Operator, float]:
    """An operator from named fields, and its count.  Raises FaultError."""
    family = read(Family, entry.get("family"), "family")
    found: dict[str, Any] = dict(vars(read(entry_of(family), entry)))
    count: float = found.pop("count")
    shape = tuple([float(found.pop(name)) for name in FAMILY_FIELDS[family]])
    _check_geometry(family, shape)
    if (only := ONE_FAMILY.get(found["library"], family)) != family:
        raise FaultError(f"= {found['library']!r} has kernels of {only} alone; leave it out", "library")
    found |= {name: canonical_precision(found[name]) for name in ("precision", "precision_out", "precision_kv") if found.get(name)}
    return Operator(**found, shape=shape), count


def make_operator(family: str, operator: str, precision: str, **details: float | str | bool) -> Operator:
    """An Operator from named fields.  Raises WorkloadError for an unknown name and an impossible shape."""
    try:
        return read_operator({"family": family, "operator": operator, "precision": precision, "count": 1.0, **details})[0]
    except FaultError as fault:
        raise WorkloadError(f"{fault.inside(family)}") from None


def _check_geometry(family: str, shape: tuple[float, ...]) -> None:
    """Refuse an impossible shape whose single numbers are valid."""
    if family == "conv":
        _, channels, height, width, filters, kernel_h, kernel_w, _, padding, groups = shape
        if kernel_h > height + 2.0 * padding or kernel_w > width + 2.0 * padding:
            raise FaultError(f"kernel {kernel_h:.0f}x{kernel_w:.0f} is larger than the padded image; padding = {padding:.0f}")
        if channels % groups or filters % groups:
            raise FaultError(f"groups = {groups:.0f} must divide channels = {channels:.0f} and filters = {filters:.0f}")
    if family == "attention":
        _, _, _, heads, kv_heads, _, _, causal = shape
        if heads % kv_heads:
            raise FaultError(f"kv_heads = {kv_heads:.0f} must divide heads = {heads:.0f}")
        if causal > 1.0:
            raise FaultError(f"causal = {causal!r} must be 0 or 1")
    if family == "moe":
        _, _, inter, topk, experts, tp, ep, _, gated = shape
        if experts % ep or inter % tp:
            raise FaultError(f"ep = {ep:.0f} must divide experts = {experts:.0f}, and tp = {tp:.0f} inter = {inter:.0f}")
        if topk > experts or gated > 1.0:
            raise FaultError(f"topk = {topk:.0f} must be at most experts = {experts:.0f}, and gated = {gated:.0f} 0 or 1")
    if family == "communication" and shape[1] < 2.0:
        raise FaultError("num_gpus = 1: a single GPU has nobody to talk to")


def repeats_operand(operator: Operator) -> bool:
    """Whether element-wise work repeats one of two operands along a dimension: half of it, at most, is then read."""
    return operator.operator in TWO_INPUTS and operator["reads"] <= 1.5 * operator["elements"]


def as_run(operator: Operator, gpu: GpuSpec | None = None) -> Operator:
    """The operator as libraries run it on a board: a convolution of single pixels is a product; which attention is the framework's own;
    parts of a latent context are sequences of their own;
    products in fp32 need no word that they run on CUDA cores; tf32 is fp32 where a board has none.

    On an H200 cuDNN took the kernels of products for all 13 that were measured (bundles/data/h200-sxm).
    """
    if is_of_single_pixels(operator):
        batch, channels, height, width, filters = operator.shape[:5]
        operator = replace(operator, family="gemm", operator="linear", shape=(1.0, batch * height * width, filters, channels))
    if gpu is None:
        return operator
    if operator.precision == "tf32" and not gpu.on_tensor_cores("tf32"):
        operator = replace(operator, precision="fp32")
    if (operator.family, operator.precision) == ("gemm", "fp32"):
        return operator if operator.cuda_cores else replace(operator, cuda_cores=True)
    if operator.family == "attention" and operator.library in ("", FLASH_ATTENTION):
        if gpu.compute_capability not in CUDNN_HEADS:
            return replace(operator, library="") if operator.library else operator
        own = operator.library or cudnn_takes(operator, gpu.compute_capability)
        return operator if own else replace(operator, library=FLASH_ATTENTION)
    if operator.operator == "mla_decode" and float(gpu.compute_capability) < 9.0:
        batch, queries, context, heads = operator.shape
        parts = min(CONTEXT_PARTS.get(operator.library, 1.0), context)
        return replace(operator, shape=(batch * parts, queries, -(-context // parts), heads))
    return operator


def cudnn_takes(attention: Operator, compute_capability: str) -> bool:
    """Whether PyTorch leaves such attention to cuDNN on such a board."""
    head_dim, halves = attention["head_dim"], attention.precision in ("fp16", "bf16")
    return halves and head_dim <= CUDNN_HEADS.get(compute_capability, 0.0) and head_dim % 8.0 == 0.0


SINGLE_PIXELS: Final = (1.0, 1.0, 1.0, 0.0, 1.0)
"""Height and width of the kernel, stride, padding and groups of a convolution of single pixels."""


def is_of_single_pixels(operator: Operator) -> bool:
    """Whether an operator is a convolution of single pixels, a product of the image."""
    return operator.family == "conv" and operator.operator == "conv2d" and operator.shape[5:] == SINGLE_PIXELS


def is_of_convolution(operator: Operator) -> bool:
    """Whether an operator is a convolution or a conversion of its images."""
    return operator.family == "conv" or operator.operator == "layout"


PIXEL_LAYOUT: Final = "pixel_layout"
"""The rule, in `Operator.origin`, by which layouts change around convolutions of single pixels."""

KEEPS_PIXELS: Final = frozenset({"8.6", "8.9", "12.0"})
"""Compute capabilities of boards on which cuDNN takes single pixels of channels-first images in fp16 as they lie: timm's models on RTX
3090, 4090 and 5090.  ML.ENERGY's diffusion in fp16 on A100 and H100 fits better with conversions, as EnergAIzer's runs in bf16 on A100 and
A10 and Transformers' in tf32 on an A100 do (docs/model.md)."""


def conv_output_size(operator: Operator) -> tuple[float, float]:
    """Height and width of a convolution's output [pixel]."""
    _, _, height, width, _, kernel_h, kernel_w, stride, padding, _ = operator.shape
    return (height + 2.0 * padding - kernel_h) // stride + 1.0, (width + 2.0 * padding - kernel_w) // stride + 1.0


@frozen
class UnknownOperator:
    """An operator of a workload's source that no kernel family describes; `elements`: how many it writes, 0 if unknown."""

    name: str
    count: Annotated[int, Span(1, 1e12)]
    elements: Annotated[float, Span(0.0)] = field(default=0.0, metadata=WHEN_GIVEN)


Byte = Annotated[float, Span(0.0, 1e24, "byte")]


@frozen
class Footprint:
    """Least memory of the model while it runs [byte]"""

    weights_byte: Annotated[Byte, "parameters and buffers"] = 0.0
    optimizer_byte: Annotated[Byte, "what an optimizer keeps for them"] = 0.0
    cache_byte: Annotated[Byte, "keys and values of the tokens before a decoding step"] = 0.0
    passing_byte: Annotated[Byte, "the most at a time beside these: inputs, activations, gradients, the cache that a prefill writes"] = 0.0

    @property
    def total_byte(self) -> float:
        """Sum of all parts [byte]."""
        return self.weights_byte + self.optimizer_byte + self.cache_byte + self.passing_byte


@frozen
class Workload:
    """Operators with their counts, in first-seen order; equal operators are merged.

    `model_family` is a free name that groups workloads (for example "bert"); it never enters the equations.
    `completion` names the rule set that added missing operators.  `unknown` holds operators that cannot be modelled,
    `warnings` assumptions of the model, `notes` further information.  `footprint` is the memory of the model, None if
    unknown.  `gpus` GPUs run these operators at once, each its own share of a model.
    """

    name: str
    operators: tuple[Operator, ...]
    counts: tuple[float, ...]
    model_family: str = ""
    unknown: tuple[UnknownOperator, ...] = ()
    completion: str = ""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    footprint: Footprint | None = None
    gpus: int = 1

    def __post_init__(self) -> None:
        if not self.operators or len(self.operators) != len(self.counts):
            there = f"{len(self.operators)} operators and {len(self.counts)} counts"
            raise WorkloadError(f"{self.name}: {there}; a workload has at least one operator, and a count for each")


def workload_as_run(workload: Workload, gpu: GpuSpec | None = None) -> Workload:
    """The workload with its operators as libraries run them, an engine's in fp16 on a board without bf16; the same one if none differs."""
    if gpu is not None and not gpu.on_tensor_cores("bf16"):
        served = any(one.family == "gemm" and one.library in LIBRARIES for one in workload.operators)
        turned = tuple(map(_in_fp16, workload.operators))
        if served and turned != workload.operators:
            workload = replace(workload, operators=turned, notes=(*workload.notes, f"{gpu.name} has no bf16: fp16 in its place"))
    operators, counts = tuple(as_run(operator, gpu) for operator in workload.operators), workload.counts
    if gpu is not None:
        counts = tuple(0.0 if _left_out(one, gpu) else count for one, count in zip(workload.operators, counts, strict=True))
    if (operators, counts) == (workload.operators, workload.counts) or not any(counts):
        return workload
    operators, counts = merge_counts(operators, counts)
    return replace(workload, operators=operators, counts=counts)


def _left_out(one: Operator, gpu: GpuSpec) -> bool:
    """Whether an operator is a change of layout that cuDNN does without on a board: so are those of fp32 without tf32."""
    kept = one.precision == "fp16" and one.origin.endswith(f":{PIXEL_LAYOUT}") and gpu.compute_capability in KEEPS_PIXELS
    return one.operator == "layout" and (kept or (one.precision == "tf32" and not gpu.on_tensor_cores("tf32")))


def _in_fp16(one: Operator) -> Operator:
    computed, out, kept = ("fp16" if name == "bf16" else name for name in (one.precision, one.precision_out, one.precision_kv))
    return replace(one, precision=computed, precision_out=out, precision_kv=kept)


Counted = tuple[tuple[Operator, ...], tuple[float, ...]]
"""Operators, and how often each runs."""


def merge_operators(sequence: Iterable[Operator]) -> Counted:
    """Equal operators of a sequence merged: unique operators in first-seen order, and their counts."""
    operators = tuple(sequence)
    return merge_counts(operators, [1.0] * len(operators))


def merge_counts(operators: Iterable[Operator], counts: Iterable[float]) -> Counted:
    """Equal operators merged and their counts added, in first-seen order; operators with a count of 0 are dropped."""
    totals: dict[Operator, float] = {}
    for operator, count in zip(operators, counts, strict=True):
        if count:
            totals[operator] = totals.get(operator, 0.0) + count
    return tuple(totals), tuple(totals.values())


@frozen
class Listing:
    """Operators in execution order, before they are merged into a Workload: neighbours give more information than a single operator.

    `operators`: each once; `order`: indices into them, in execution order; `counts`: occurrences of each in `order`.

    `unknown` entries are left out of `order`.
    """

    operators: tuple[Operator, ...]
    order: tuple[int, ...]
    counts: tuple[float, ...]
    unknown: tuple[UnknownOperator, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def places(self, numbers: Collection[int]) -> list[int]:
        """Positions in `order` of any of some operators, ascending."""
        return list(compress(range(len(self.order)), map(numbers.__contains__, self.order)))


def main_precision(operators: Sequence[Operator], counts: Sequence[float]) -> str:
    """The precision of most matrix products, of most operators if there are no products, "" if there are no operators."""
    products: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for operator, count in zip(operators, counts, strict=True):
        tally = products if operator.family in ("gemm", "conv", "attention") else others
        tally[operator.precision] += int(count)
    ranked = (products or others).most_common(1)
    return ranked[0][0] if ranked else ""
