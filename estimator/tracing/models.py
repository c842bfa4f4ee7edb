"""Configurations from which models are built: named ones that are shipped, and files of Transformers.

A shipped one is `configs/models/NAME.toml`: facts that the model's authors published, no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.reader import FaultError, Text, plain, read, read_file
from estimator.vocabulary.regular_files import read_regular
from estimator.vocabulary.resources import resource_folder, resource_names

CONFIG_FILE: Final = "config.json"
KIND: Final = "models"
SUFFIX: Final = ".toml"
NOT_FIELDS: Final = frozenset(
    {"model_type", "architectures", "auto_map", "torch_dtype", "dtype", "transformers_version", "quantization_config"}
)
"""What of a configuration file is about its weights, its code or its model's name."""
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


@dataclass(kw_only=True)
class _Shipped:
    title: Text
    source: Text
    model_type: Text
    architecture: Text
    config: Any
    image_size: int = 0


def _shipped(path: Path) -> ModelConfig:
    found = read_file(_Shipped, path, "the model", WorkloadError)
    return ModelConfig(
        name=path.name.removesuffix(SUFFIX),
        title=found.title,
        model_type=found.model_type,
        architecture=found.architecture,
        values=plain(found.config),
        image_size=found.image_size,
    )


@dataclass(kw_only=True)
class _Config:
    """What of a configuration of Transformers is needed beside its fields."""

    model_type: Text
    architectures: tuple[Text, ...] | None = None


def _from_file(path: Path) -> ModelConfig:
    try:
        document = parse_json(read_regular(path, MAX_FILE_BYTES))
        if not isinstance(document, dict):
            raise FaultError("must be an object")
        found = read(_Config, {name: document[name] for name in ("model_type", "architectures") if name in document})
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise WorkloadError(f"{path}: no configuration of Transformers: {error}") from error
    return ModelConfig(
        name=path.parent.name or path.stem,
        title=str(path),
        model_type=found.model_type,
        architecture=(found.architectures or ("",))[0],
        values={key: value for key, value in document.items() if key not in NOT_FIELDS},
    )
