"""Configurations from which models are built: shipped ones with a name, files of Transformers, and the number formats that they state.

A shipped configuration is `configs/models/NAME.toml`: facts that the model's authors published, no weights.  A format of stored weights
comes from `quantization_config`: one that is known, or a refusal by name; the methods are data: `configs/serving/formats.toml`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.errors import EstimatorError, WorkloadError
from estimator.vocabulary.reader import MAX_FILE_BYTES, FaultError, Text, Words, plain, read, read_file
from estimator.vocabulary.regular_files import read_regular
from estimator.vocabulary.resources import resource_folder, resource_names
from estimator.vocabulary.values import frozen

ABOUT_WEIGHTS: Final = frozenset({"torch_dtype", "dtype", "quantization_config"})
NOT_FIELDS: Final = ABOUT_WEIGHTS | {"model_type", "architectures", "auto_map", "transformers_version"}
"""Fields of a configuration file about its weights, and those with the ones about its code and its model's name."""


@frozen
class ModelConfig:
    """A configuration: `model_type` and `architecture` are names that Transformers knows, `config` its fields.

    `weights`: the fields of the published weights (ABOUT_WEIGHTS); a traced model has the precision of the request instead.
    `image_size` [pixel] is the usual height and width of images, 0 if the fields state it or if there are no images.
    """

    title: Text
    source: str = ""
    model_type: Text
    architecture: str
    config: Mapping[str, object]
    image_size: int = 0
    weights: Mapping[str, object] = field(default_factory=dict)

    @property
    def quantised(self) -> Mapping[str, object]:
        """How the weights are stored; empty if as numbers."""
        found = self.weights.get("quantization_config")
        return found if isinstance(found, Mapping) else {}


def model_names() -> tuple[str, ...]:
    """Names of the shipped configurations."""
    return resource_names("models", ".toml")


def load_model_config(model: str) -> ModelConfig:
    """The configuration of a shipped name, a configuration file, or a folder that holds one.

    Raises WorkloadError for an unknown name, listing the known ones, and for a file that is no configuration.
    """
    if model in model_names():
        found = read_file(ModelConfig, resource_folder("models") / f"{model}.toml", "the model", WorkloadError)
        return replace(found, config=plain(found.config), weights=plain(found.weights))
    path = Path(model)
    try:
        path = path / "config.json" if path.is_dir() else path
        return _from_file(path)
    except (FileNotFoundError, NotADirectoryError):
        if model.lower() in model_names():
            return load_model_config(model.lower())
        raise WorkloadError(
            f"{model}: no model of this name and no configuration file; known: {', '.join(model_names())}; "
            "or the path of a config.json, or MODULE:CALLABLE of your own code"
        ) from None
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise WorkloadError(f"{path}: no configuration of Transformers: {error}") from error


@dataclass(kw_only=True)
class _Config:
    """Required properties of a Transformers configuration, other than its fields."""

    model_type: Text
    architectures: tuple[Text, ...] | None = None
    quantization_config: Mapping[str, object] | None = None


def _from_file(path: Path) -> ModelConfig:
    """The configuration in a file.  Raises OSError and ValueError."""
    document = read(Mapping[str, object], parse_json(read_regular(path, MAX_FILE_BYTES)))
    found = read(_Config, {name: document[name] for name in _Config.__annotations__ if name in document})
    return ModelConfig(
        title=str(path),
        model_type=found.model_type,
        architecture=(found.architectures or ("",))[0],
        config=plain({key: value for key, value in document.items() if key not in NOT_FIELDS}),
        weights=plain({key: value for key, value in document.items() if key in ABOUT_WEIGHTS}),
    )


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
