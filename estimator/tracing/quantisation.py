"""Number formats of stored weights from the `quantization_config` of a configuration: a format that is known, or a refusal by name.

The methods are data: `configs/serving/formats.toml`.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Final

from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.reader import FaultError, Words, read, read_file
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.values import frozen

Fields = Mapping[str, object]
Names = Mapping[str, str]

WIDENED: Final = "widened"
"""Name of 4-bit weights that a kernel widens to 16 bit before each product (bitsandbytes)."""

WIDENED_BYTE: Final = 0.5 + 4.0 / 64.0
"""Storage of such a weight, with a 32-bit scale for every 64 [byte].  Source: bitsandbytes, default block size."""

EXPERTS_ALONE: Final = "mxfp4"
"""Part of the names of formats that experts alone have.  Source: gpt-oss, model card."""

SKIPPED: Final = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
"""Fields with names of modules that are not quantised."""

STAYS: Final = ("lm_head", "embed", "norm", "router", "*.gate")
"""Modules that stay in 16 bits whether a list names them or not: head, embeddings, norms, routers of experts."""


@frozen
class _Modules:
    """Matrices that a name of a module stands for."""

    pattern: str
    matrices: tuple[str, ...]


@frozen
class Formats:
    """The content of `configs/serving/formats.toml`."""

    weights: Names
    cache: Names
    stored: Names
    methods: Mapping[str, tuple[Names, ...]]
    modules: tuple[_Modules, ...]


@cache
def formats() -> Formats:
    """Known formats and methods."""
    return read_file(Formats, resource_folder("serving") / "formats.toml", "the formats", EstimatorError)


def chosen_format(known: Names, name: object, option: str) -> str:
    """The format of a name that a user or a configuration gives.  Raises FaultError, listing the known ones."""
    return known[read(Annotated[str, Words(tuple(known))], name, option)]


def remedy() -> str:
    """The end of a refusal: what to name instead."""
    return f"name one as --weights {', '.join(formats().weights)}"


def stored_format(quant: Fields) -> str:
    """The format of all groups of a quantised model.  Raises FaultError for a method without a known kernel."""
    top = facts(quant)
    method = (top.get("quant_method") or top.get("quant_algo") or "without quant_method").lower()
    known = formats().methods
    rules = next((known[name] for name in known if re.match(rf"{name}(_|$)", method)), None)
    if rules is None:
        raise FaultError(f"= {method[:40]} is unknown; known: {', '.join(known)}; {remedy()}", "quant_method")
    groups = read(Mapping[str, Fields], quant.get("config_groups") or {"": {}}, "config_groups")
    found = set()
    for group in groups.values():
        own = top | facts(group)
        fitting = (rule for rule in rules if all(re.fullmatch(rule[name], own.get(name, "")) for name in rule if name != "format"))
        asked = {name: own[name][:40] for rule in rules for name in rule if own.get(name)}
        found.add(next((rule["format"] for rule in fitting), f"? {asked}"))
    if len(found) > 1 or min(found).startswith("?"):
        raise FaultError(f"= {method} with {' and '.join(sorted(found))} has no known kernel; {remedy()}".replace("? ", ""), "quant_method")
    return found.pop()


def facts(fields: Fields, inside: str = "") -> dict[str, str]:
    """Fields of nested objects as texts, by names with dots; without those that are null or false."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found |= facts(value, f"{inside}{name}.")
        elif value is not None and value is not False:
            found[inside + name] = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value).replace("True", "true")
    return found


def skipped_modules(quant: Fields) -> tuple[str, ...]:
    """Names of modules that are not quantised, as the configuration writes them.  Raises FaultError."""
    return tuple(name for option in SKIPPED for name in read(tuple[str, ...], quant.get(option) or (), option))


def stays_wide(name: str, quant: Fields) -> bool:
    """Whether a module keeps its 16 bits: STAYS, and what the configuration names (`re:` starts a regular expression)."""
    return any(_matches(name, pattern) for pattern in (*STAYS, *skipped_modules(quant)))


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    if "*" in pattern:
        return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None
    return pattern in name
