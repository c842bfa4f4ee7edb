"""Number formats of a served model's weights and cache: from `quantization_config`, or as the user wants."""

import re
from collections.abc import Iterator
from typing import Final

from estimator.serving.architecture import ATTENDING, SCANNING, layer_types
from estimator.tracing.models import (
    EXPERTS_ALONE,
    Fields,
    chosen_format,
    facts,
    formats,
    group_size,
    remedy,
    skipped_modules,
    stored_format,
    weight_byte,
    with_formats,
)
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, SIXTEEN_BIT
from estimator.vocabulary.reader import FaultError, read
from estimator.vocabulary.values import frozen

SIXTEEN: Final = "bf16"
"""The 16-bit format."""

HOLDERS: Final = {"scan": SCANNING, "expert": ("moe",), "shared": ("moe",), "up": ("mlp",), "down": ("mlp",)}
"""Types of layers that have matrices whose names begin so, where types tell them apart; others are those of attention."""

LAYER: Final = re.compile(r"layers?\\?\.(?:(\d+)\b|\*)")
"""Layer in the name of a module."""


Kept = tuple[tuple[str, float], ...]
"""Kinds of matrices that stay in 16 bit, with the share of their layers in which they do [1]."""


@frozen
class Weights:
    """Formats of the products of layers, of experts, of the head, and of the cache.

    narrow_byte: storage of a weight that does not [byte].  group: how many along the inputs are known to share a scale, else 0.
    sixteen: name of the 16-bit format in the checkpoint.  converted: whether that holds float32, which engines convert to 16 bit.
    """

    layer: str
    experts: str
    head: str = SIXTEEN
    cache: str = SIXTEEN
    kept: Kept = ()
    narrow_byte: float = 2.0
    group: int = 0
    sixteen: str = SIXTEEN
    converted: bool = False

    @property
    def name(self) -> str:
        """The name of the weights' format as an option."""
        return next(name for name, form in formats().weights.items() if form == self.experts)

    @property
    def static(self) -> bool:
        """Whether scales of activations are given: the kernel before a product converts them."""
        return self.layer == "fp8_static"

    def formats(self, product: str) -> Iterator[tuple[str, float]]:
        """Formats of a kind of matrix, and the share of its layers that has each."""
        own = {"head": self.head, "router": SIXTEEN, "expert_up": self.experts, "expert_down": self.experts}.get(product, self.layer)
        kept = dict(self.kept).get(product, 0.0) if own != SIXTEEN else 0.0
        yield from ((name, share) for name, share in ((own, 1.0 - kept), (SIXTEEN, kept)) if share)

    def bytes_of(self, product: str) -> float:
        """Mean storage of a weight of a kind of matrix [byte]."""
        return sum(share * (BYTES_PER_ELEMENT[SIXTEEN] if name == SIXTEEN else self.narrow_byte) for name, share in self.formats(product))


def read_weights(config: Fields, weights: str | None = None, kv: str | None = None) -> Weights:
    """Formats that a configuration states; `weights` and `kv` (options of the command) come before it.

    Raises WorkloadError for an unknown method or format, by name, and for a configuration without any statement on its weights.
    """
    try:
        config = with_formats(config)
        quant = read(Fields, config.get("quantization_config") or {}, "quantization_config")
        scheme = facts(quant)
        scaled = scheme.get("kv_cache_scheme.type", "auto") + scheme.get("kv_cache_scheme.num_bits", "")
        stated = scheme.get("kv_cache_quant_algo", scheme.get("kv_cache_scheme", scaled)).lower().replace("float8", "fp8")
        dtype = config.get("dtype") or config.get("torch_dtype")
        found = chosen_format(formats().weights, weights, "weights") if weights else stored_format(quant) if quant else _stored(dtype)
        own: Fields = {} if weights else quant
        return Weights(
            layer=SIXTEEN if EXPERTS_ALONE in found else found,
            experts=found,
            head=found if quant.get("lm_head") is True and not weights else SIXTEEN,
            cache=chosen_format(formats().cache, kv or stated, "kv"),
            kept=() if weights else _kept(quant, config),
            narrow_byte=weight_byte(found, own),
            group=group_size(found, own),
            sixteen=weights if weights in SIXTEEN_BIT else formats().stored.get(str(dtype), SIXTEEN),
            converted=not weights and dtype == "float32",
        )
    except FaultError as fault:
        raise WorkloadError(f"{config.get('name') or config.get('model_type')}: {fault}") from None


def _stored(dtype: object) -> str:
    if dtype is None:
        raise FaultError(f"= none: the precision of the weights is not stated; {remedy()}", "torch_dtype")
    return formats().weights[chosen_format(formats().stored, dtype, "torch_dtype")]


def _kept(quant: Fields, config: Fields) -> Kept:
    """Kinds of matrices that stay in 16 bit, with the share of the layers that have one in which they do."""
    stated, types = config.get("num_hidden_layers"), layer_types(config)
    layers = set(range(stated if isinstance(stated, int) and stated > 0 else max(len(types), 1)))
    named: dict[str, set[int]] = {}
    for module in skipped_modules(quant):
        place = LAYER.search(module)
        own = {int(place[1])} if place and place[1] else layers
        rest = LAYER.sub("", module, count=1)
        for name in next((one.matrices for one in formats().modules if re.search(one.pattern, rest)), ()):
            named.setdefault(name, set()).update(own)
    found = {}
    for name, own in named.items():
        kinds = next((kinds for prefix, kinds in HOLDERS.items() if name.startswith(prefix)), ATTENDING)
        holders = {i for i in layers if not types or types[i] in kinds or not {*kinds} & {*types}}
        found[name] = len(own & holders) / len(holders)
    return tuple((name, share) for name, share in found.items() if share)
