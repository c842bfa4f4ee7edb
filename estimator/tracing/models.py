"""Configurations from which models are built: named ones that are shipped, and files of Transformers.

A shipped one is `configs/models/NAME.toml`: facts that the model's authors published, no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from estimator.documents import parse_json, parse_toml
from estimator.errors import WorkloadError
from estimator.regular_files import read_regular
from estimator.resources import resource_folder, resource_names

CONFIG_FILE: Final = "config.json"
KIND: Final = "models"
SUFFIX: Final = ".toml"
FIELDS: Final = frozenset({"title", "source", "model_type", "architecture", "image_size", "config"})
MAX_FILE_BYTES: Final = 1 << 20
"""No configuration comes near this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A configuration: `model_type` and `architecture` are names that Transformers knows, `values` its fields.

    `image_size` [pixel] is the usual height and width of images, 0 where the fields say it or where there are none.
    """

    name: str
    title: str
    model_type: str
    architecture: str
    values: Mapping[str, Any]
    image_size: int = 0


def model_names() -> tuple[str, ...]:
    """Names of the shipped configurations."""
    return resource_names(KIND, SUFFIX)


def load_model_config(model: str) -> ModelConfig:
    """The configuration of a shipped name, a configuration file, or a folder that holds one.

    Raises WorkloadError for an unknown name, listing the known ones, and for a file that is no configuration.
    """
    if model in model_names():
        return _shipped(resource_folder(KIND) / f"{model}{SUFFIX}")
    path = Path(model)
    try:
        path = path / CONFIG_FILE if path.is_dir() else path
        there = path.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        raise WorkloadError(
            f"{model}: no model of this name and no configuration file; known: {', '.join(model_names())}; "
            "or the path of a config.json, or MODULE:CALLABLE of your own code"
        )
    return _from_file(path)


def _shipped(path: Path) -> ModelConfig:
    try:
        document = parse_toml(read_regular(path, MAX_FILE_BYTES))
    except (OSError, ValueError) as error:
        raise WorkloadError(f"{path}: cannot be read: {error}") from error
    foreign = sorted(set(document) - FIELDS)
    if foreign:
        raise WorkloadError(f"{path}: unknown field {foreign[0]!r}; known: {', '.join(sorted(FIELDS))}")
    for name in ("title", "source", "model_type", "architecture", "config"):
        if not document.get(name):
            raise WorkloadError(f"{path}: {name} is missing")
    return ModelConfig(
        name=path.name.removesuffix(SUFFIX),
        title=document["title"],
        model_type=document["model_type"],
        architecture=document["architecture"],
        values=document["config"],
        image_size=document.get("image_size", 0),
    )


def _from_file(path: Path) -> ModelConfig:
    try:
        document = parse_json(read_regular(path, MAX_FILE_BYTES))
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise WorkloadError(f"{path}: not a configuration in JSON: {error}") from error
    model_type = document.get("model_type") if isinstance(document, dict) else None
    if not isinstance(model_type, str) or not model_type:
        raise WorkloadError(f"{path}: no field 'model_type'; a configuration of Transformers has one")
    names = document.get("architectures") or [""]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WorkloadError(f"{path}: architectures = {names!r} must be a list of names")
    left_out = {"model_type", "architectures", "auto_map", "torch_dtype", "dtype", "transformers_version", "quantization_config"}
    values = {key: value for key, value in document.items() if key not in left_out}
    return ModelConfig(name=path.parent.name or path.stem, title=str(path), model_type=model_type, architecture=names[0], values=values)
