"""Number formats of a served model's weights and cache: from `quantization_config`, or as the user wants.

Source of the fields: Transformers 4.57 (`QuantizationConfigMixin` and its children), compressed-tensors, ModelOpt.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.quantities import FORMATS
from estimator.vocabulary.reader import FaultError, read

Fields = Mapping[str, object]

SIXTEEN: Final = "bf16"
"""The 16-bit format.  Kernels take as long with bf16 as with fp16, and tables hold bf16; engines convert fp32 weights to 16 bit."""

WIDENED: Final = "widened"
"""Name of 4-bit weights that a kernel widens to 16 bit before each product (bitsandbytes)."""

WIDENED_BYTE: Final = 0.5 + 4.0 / 64.0
"""Storage of such a weight, with a 32-bit scale for every 64 [byte].  Source: bitsandbytes, default block size."""

OPTIONS: Final[dict[str, str]] = {
    "bf16": SIXTEEN,
    "fp16": SIXTEEN,
    "fp8": "fp8",
    "fp8-static": "fp8_static",
    "fp8-block": "fp8_block",
    "w8a8": "sq",
    "int8": "int8_wo",
    "w8a16": "int8_wo",
    "int4": "int4_wo",
    "w4a16": "int4_wo",
    "nvfp4": "nvfp4",
    "mxfp4": "w4a16_mxfp4",
    "mxfp4-mxfp8": "w4a8_mxfp4_mxfp8",
    "bitsandbytes": WIDENED,
}
"""Formats that a user may name for the weights."""

EXPERTS_ALONE: Final = frozenset({"w4a16_mxfp4", "w4a8_mxfp4_mxfp8"})
"""Formats that only experts have; the other layers keep 16 bit.  Source: gpt-oss model card."""

CACHES: Final[dict[str, str]] = {"bf16": SIXTEEN, "fp16": SIXTEEN, "auto": SIXTEEN, "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
"""Formats of cached keys and values by the name in engines."""

DTYPES: Final = frozenset({"bfloat16", "float16", "float32"})

BITS: Final[dict[str, str]] = {"4": "int4_wo", "8": "int8_wo"}
"""Formats of weights with an integer type, and activations in 16 bit."""

GROUPS: Final[dict[tuple[str, object, object], str]] = {
    ("float", 8, 8): "fp8",
    ("float", 4, 4): "nvfp4",
    ("int", 8, 8): "sq",
    ("int", 8, None): "int8_wo",
    ("int", 4, None): "int4_wo",
}
"""Formats of compressed-tensors by type and bits of weights, and bits of activations."""

ALGORITHMS: Final[dict[str, str]] = {
    "FP8": "fp8_static",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_BLOCK_SCALES": "fp8_block",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
    "W4A16": "int4_wo",
    "W4A16_AWQ": "int4_wo",
    "W4A16_GPTQ": "int4_wo",
    "W8A16": "int8_wo",
    "W8A8_SQ_PER_CHANNEL": "sq",
}
"""Formats of ModelOpt by `quant_algo`."""

FIXED: Final[dict[str, str]] = {"fbgemm_fp8": "fp8", "mxfp4": "w4a16_mxfp4", "eetq": "int8_wo"}
"""Methods with one format."""

PARTS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (r"head|embed|norm|router|gate(?!_)", ()),
    (r"shared_expert\w*\.?(gate|up)", ("shared_up",)),
    (r"shared_expert\w*\.?down", ("shared_down",)),
    (r"shared_expert", ("shared_up", "shared_down")),
    (r"expert|block_sparse_moe", ("expert_up", "expert_down")),
    (r"[qkv]_proj|qkv|[qk]v?_[ab]|q_a|query_key_value", ("qkv", "qkv_a", "q_b", "kv_b")),
    (r"o_proj|out_proj", ("out",)),
    (r"attn|attention", ("qkv", "qkv_a", "q_b", "kv_b", "out")),
    (r"gate_proj|up_proj|gate_up|fc1", ("up",)),
    (r"down_proj|fc2", ("down",)),
    (r"mlp|feed_forward", ("up", "down", "expert_up", "expert_down", "shared_up", "shared_down")),
)
"""Matrices that a name in a list of modules without quantisation means: those of the first pattern that is found."""

EVERYTHING: Final = tuple(dict.fromkeys(name for _, names in PARTS for name in names))

LAYER: Final = re.compile(r"layers?\\?\.(\d+)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Formats of the products of layers, of experts, of the head, and of the cache.

    kept: share of the layers in which a kind of matrix stays in 16 bit [1], by name.  static: scales of activations are given.
    """

    layer: str
    experts: str
    head: str = SIXTEEN
    cache: str = SIXTEEN
    kept: tuple[tuple[str, float], ...] = ()

    @property
    def static(self) -> bool:
        """Whether the kernel before a product converts the activations."""
        return self.layer == "fp8_static"

    def formats(self, product: str) -> Iterator[tuple[str, float]]:
        """Formats of a kind of matrix, and the share of its layers that has each."""
        if product in ("head", "router"):
            yield (self.head if product == "head" else SIXTEEN), 1.0
            return
        kept = dict(self.kept).get(product, 0.0)
        shares = {self.experts if product.startswith("expert_") else self.layer: 1.0 - kept}
        shares[SIXTEEN] = shares.get(SIXTEEN, 0.0) + kept
        yield from ((name, share) for name, share in shares.items() if share)

    def bytes_of(self, product: str) -> float:
        """Mean storage of a weight of a kind of matrix [byte]."""
        return sum(share * (WIDENED_BYTE if name == WIDENED else FORMATS[name].weight_byte) for name, share in self.formats(product))


def read_weights(config: Fields, weights: str | None = None, kv: str | None = None) -> Weights:
    """Formats that a configuration states; `weights` and `kv` (keys of OPTIONS and CACHES) come before it.

    Raises WorkloadError for an unknown method or format, by name, and for a configuration without any statement on its weights.
    """
    name = str(config.get("name") or config.get("model_type") or "the configuration")
    quant = config.get("quantization_config")
    try:
        stated = read(Fields, quant, "quantization_config") if quant else {}
        found = _chosen(weights, OPTIONS, "weights") if weights else _stated(config, stated)
        cache = _chosen(kv, CACHES, "kv") if kv else _stated_cache(stated)
        kept = _kept(stated, config) if stated and not weights else ()
    except FaultError as fault:
        raise WorkloadError(f"{name}: {fault}") from None
    head = found if stated.get("lm_head") is True and not weights else SIXTEEN
    return Weights(layer=SIXTEEN if found in EXPERTS_ALONE else found, experts=found, head=head, cache=cache, kept=kept)


def _chosen(name: str, known: Mapping[str, str], option: str) -> str:
    if name not in known:
        raise FaultError(f"= {name[:40]!r} is unknown; known: {', '.join(known)}", option)
    return known[name]


def _stated(config: Fields, quant: Fields) -> str:
    """The format of a configuration's weights."""
    if not quant:
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
        if dtype not in DTYPES:
            what = f"has the unknown precision {dtype[:40]!r}" if dtype else "does not state the precision of its weights (torch_dtype)"
            raise FaultError(f"{what}; name one as --weights {', '.join(OPTIONS)}".replace("the document ", ""))
        return SIXTEEN
    method = str(quant.get("quant_method") or quant.get("quant_algo") or "").lower()
    if method in FIXED:
        return FIXED[method]
    detail, found = METHODS[method](quant) if method in METHODS else ("", None)
    if found is None:
        known = f"known methods: {', '.join((*METHODS, *FIXED))}" if method not in METHODS else "no kernel of it is known"
        asked = f"{method[:40] or 'without a quant_method'}{detail and ' with '}{detail}"
        raise FaultError(f"= {asked}; {known}; name what runs instead as --weights {', '.join(OPTIONS)}", "quantization_config")
    return found


Found = tuple[str, str | None]
"""What a method states beside its name, and the format; None if no format fits."""


def _fp8(quant: Fields) -> Found:
    block, scheme = quant.get("weight_block_size"), str(quant.get("activation_scheme", "dynamic"))
    if block:
        return f"blocks of {block}", "fp8_block" if list(block) == [128, 128] else None  # type: ignore[call-overload]
    return f"{scheme} scales", {"dynamic": "fp8", "static": "fp8_static"}.get(scheme)


def _integers(quant: Fields) -> Found:
    bits = str(quant.get("bits") or quant.get("w_bit") or "no")
    return f"{bits} bits", BITS.get(bits)


def _bitsandbytes(quant: Fields) -> Found:
    return "neither 4 nor 8 bits", WIDENED if quant.get("load_in_4bit") or quant.get("_load_in_4bit") else "sq" if quant.get(
        "load_in_8bit"
    ) else None


def _groups(quant: Fields) -> Found:
    """compressed-tensors: all groups must have one format."""
    groups = read(Mapping[str, Fields], quant.get("config_groups") or {}, "config_groups")
    kinds = {_group(group) for group in groups.values()}
    return next(iter(kinds)) if len(kinds) == 1 else (f"{len(kinds)} formats in its groups", None)


def _group(group: Fields) -> Found:
    weights, given = read(Fields, group.get("weights") or {}, "weights"), group.get("input_activations")
    inputs = read(Fields, given, "input_activations") if given else {}
    kind, bits = str(weights.get("type", "int")), (weights.get("num_bits"), inputs.get("num_bits"))
    found = GROUPS.get((kind, *bits))
    if found == "fp8":
        found = "fp8_block" if weights.get("strategy") == "block" else "fp8" if inputs.get("dynamic") else "fp8_static"
    return f"{kind} weights of {bits[0]} bits, activations of {bits[1] or 16}", found


def _algorithm(quant: Fields) -> Found:
    algorithm = str(quant.get("quant_algo", ""))
    return f"quant_algo {algorithm[:40]!r}", ALGORITHMS.get(algorithm)


METHODS: Final = {
    "fp8": _fp8,
    "gptq": _integers,
    "awq": _integers,
    "gptq_marlin": _integers,
    "awq_marlin": _integers,
    "compressed-tensors": _groups,
    "bitsandbytes": _bitsandbytes,
    "modelopt": _algorithm,
    "modelopt_fp4": _algorithm,
}
"""Methods whose format depends on further fields, by `quant_method`."""


def _stated_cache(quant: Fields) -> str:
    """The format of the cache: 8-bit floats if the weights come with scales for it."""
    scheme = quant.get("kv_cache_scheme")
    kind = (scheme.get("type"), scheme.get("num_bits")) if isinstance(scheme, Mapping) else None
    return "fp8" if kind == ("float", 8) or quant.get("kv_cache_quant_algo") == "FP8" else SIXTEEN


def _kept(quant: Fields, config: Fields) -> tuple[tuple[str, float], ...]:
    """Share of the layers in which matrices stay in 16 bit, by their names."""
    layers = config.get("num_hidden_layers")
    count = layers if isinstance(layers, int) and layers > 0 else 1
    named: dict[str, set[int]] = {}
    for option in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"):
        for module in read(tuple[str, ...], quant.get(option) or (), option):
            place = LAYER.search(module)
            own = range(count) if place is None else range(int(place[1]), int(place[1]) + 1)
            rest = module[place.end() :] if place else module
            names = next((names for pattern, names in PARTS if re.search(pattern, rest)), EVERYTHING if place else ())
            for name in names:
                named.setdefault(name, set()).update(i for i in own if i < count)
    return tuple((name, len(found) / count) for name, found in named.items())
