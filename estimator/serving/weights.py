"""Number formats of a served model's weights and cache: from `quantization_config`, or as the user wants.

The methods are data: `configs/serving/formats.toml`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final

from estimator.vocabulary.errors import EstimatorError, WorkloadError
from estimator.vocabulary.quantities import FORMATS
from estimator.vocabulary.reader import FaultError, Words, read, read_file
from estimator.vocabulary.resources import resource_folder

Fields = Mapping[str, object]
Names = Mapping[str, str]

SIXTEEN: Final = "bf16"
"""The 16-bit format."""

WIDENED: Final = "widened"
"""Name of 4-bit weights that a kernel widens to 16 bit before each product (bitsandbytes)."""

WIDENED_BYTE: Final = 0.5 + 4.0 / 64.0
"""Storage of such a weight, with a 32-bit scale for every 64 [byte].  Source: bitsandbytes, default block size."""

LAYER: Final = re.compile(r"layers?\\?\.(?:(\d+)\b|\*)")
"""Layer in the name of a module."""

SKIPPED: Final = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
"""Fields with names of modules that are not quantised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Modules:
    """Matrices that a name of a module stands for."""

    pattern: str
    matrices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Formats:
    """The content of `configs/serving/formats.toml`."""

    weights: Names
    cache: Names
    stored: Names
    methods: Mapping[str, tuple[Names, ...]]
    modules: tuple[_Modules, ...]


@cache
def _formats() -> _Formats:
    return read_file(_Formats, resource_folder("serving") / "formats.toml", "the formats", EstimatorError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Formats of the products of layers, of experts, of the head, and of the cache.

    kept: kinds of matrices that stay in 16 bit, with the share of the layers in which they do [1].
    """

    layer: str
    experts: str
    head: str = SIXTEEN
    cache: str = SIXTEEN
    kept: tuple[tuple[str, float], ...] = ()

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
        return sum(share * (WIDENED_BYTE if name == WIDENED else FORMATS[name].weight_byte) for name, share in self.formats(product))


def read_weights(config: Fields, weights: str | None = None, kv: str | None = None) -> Weights:
    """Formats that a configuration states; `weights` and `kv` (options of the command) come before it.

    Raises WorkloadError for an unknown method or format, by name, and for a configuration without any statement on its weights.
    """
    try:
        quant = read(Fields, config.get("quantization_config") or {}, "quantization_config")
        scheme = _facts(quant)
        scaled = (scheme.get("kv_cache_scheme.type"), scheme.get("kv_cache_scheme.num_bits")) == ("float", "8")
        stated = "fp8" if scaled or scheme.get("kv_cache_quant_algo") == "FP8" else "auto"
        found = _chosen(_formats().weights, weights, "weights") if weights else _quantised(quant) if quant else _stored(config)
        return Weights(
            layer=SIXTEEN if "mxfp4" in found else found,  # of experts alone; source: gpt-oss, model card
            experts=found,
            head=found if quant.get("lm_head") is True and not weights else SIXTEEN,
            cache=_chosen(_formats().cache, kv or stated, "kv"),
            kept=() if weights else _kept(quant, config),
        )
    except FaultError as fault:
        raise WorkloadError(f"{config.get('name') or config.get('model_type')}: {fault}") from None


def _chosen(known: Names, name: object, option: str) -> str:
    return known[read(Annotated[str, Words(tuple(known))], name, option)]


def _stored(config: Fields) -> str:
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype is None:
        raise FaultError(f"= none: the precision of the weights is not stated; {_remedy()}", "torch_dtype")
    return _chosen(_formats().stored, dtype, "torch_dtype")


def _remedy() -> str:
    return f"name one as --weights {', '.join(_formats().weights)}"


def _quantised(quant: Fields) -> str:
    """The format of all groups of a quantised model."""
    top = _facts(quant)
    method = (top.get("quant_method") or top.get("quant_algo") or "without quant_method").lower()
    known = _formats().methods
    rules = next((known[name] for name in known if re.match(rf"{name}(_|$)", method)), None)
    if rules is None:
        raise FaultError(f"= {method[:40]} is unknown; known: {', '.join(known)}; {_remedy()}", "quant_method")
    groups = read(Mapping[str, Fields], quant.get("config_groups") or {"": {}}, "config_groups")
    found = set()
    for group in groups.values():
        facts = top | _facts(group)
        fitting = (rule for rule in rules if all(re.fullmatch(rule[name], facts.get(name, "")) for name in rule if name != "format"))
        asked = {name: facts[name][:40] for rule in rules for name in rule if facts.get(name)}
        found.add(next((rule["format"] for rule in fitting), f"? {asked}"))
    if len(found) > 1 or min(found).startswith("?"):
        raise FaultError(
            f"= {method} with {' and '.join(sorted(found))} has no known kernel; {_remedy()}".replace("? ", ""), "quant_method"
        )
    return found.pop()


def _facts(fields: Fields, inside: str = "") -> dict[str, str]:
    """Fields of nested objects as texts, by names with dots; without those that are null or false."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found |= _facts(value, f"{inside}{name}.")
        elif value is not None and value is not False:
            found[inside + name] = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value).replace("True", "true")
    return found


def _kept(quant: Fields, config: Fields) -> tuple[tuple[str, float], ...]:
    """Kinds of matrices that stay in 16 bit, with the share of the layers in which they do."""
    layers = config.get("num_hidden_layers")
    count = layers if isinstance(layers, int) and layers > 0 else 1
    named: dict[str, set[int]] = {}
    for option in SKIPPED:
        for module in read(tuple[str, ...], quant.get(option) or (), option):
            place = LAYER.search(module)
            own = {int(place[1])} if place and place[1] else set(range(count))
            rest = module[place.end() :] if place else module
            for name in next((one.matrices for one in _formats().modules if re.search(one.pattern, rest)), ()):
                named.setdefault(name, set()).update(own.intersection(range(count)))
    return tuple((name, len(found) / count) for name, found in named.items() if found)
