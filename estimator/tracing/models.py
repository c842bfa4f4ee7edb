"""Configurations from which models are built: shipped ones with a name, and files of Transformers.

A shipped configuration is `configs/models/NAME.toml`: facts that the model's authors published, no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.reader import MAX_FILE_BYTES, Text, plain, read, read_file
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
