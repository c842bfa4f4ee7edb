"""GPU specifications: TOML files into GpuSpec, names of GPUs, overrides from the command line."""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final, get_args

from estimator.vocabulary.documents import Document
from estimator.vocabulary.errors import SpecificationError, require
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.reader import FaultError, fields_of, plain, read, read_file
from estimator.vocabulary.resources import resource_folder, resource_names

FIGURES: Final = tuple(name for name, (hint, _) in fields_of(GpuSpec).items() if get_args(hint)[:1] in ((int,), (float,)))
"""Fields that hold one number."""

RATE_TABLES: Final = ("tensor_flop_per_clock", "cuda_flop_per_clock")

SET_BY_USER: Final = "set by the user"
"""How the source of a figure begins that `override_gpu` has replaced; what it was and is follows."""


def gpu_names() -> tuple[str, ...]:
    """Names of the GPUs whose specification is shipped, sorted."""
    return resource_names("gpus", ".toml")


def load_gpu(name_or_path: str | Path) -> GpuSpec:
    """The specification of a GPU by its name, its product name or a TOML file.

    Text that ends in `.toml` or holds a path separator is a file.  Shipped specifications are read once.

    Raises SpecificationError for an unknown name, an unreadable file and a figure that cannot be.
    """
    require(name_or_path, (str, Path), "name_or_path", "the name of a GPU or a file")
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text:
        return read_file(GpuSpec, Path(name_or_path), "GPU specification", SpecificationError)
    name = canonical_gpu_name(text)
    if name is None:
        raise SpecificationError(f"unknown GPU {text!r}; known: {', '.join(gpu_names())}; or give a TOML file")
    return _shipped(name)


def canonical_gpu_name(text: str) -> str | None:
    """The name of a GPU from its own name or from the name a driver reports ("NVIDIA A100-PCIE-40GB"); None where unknown."""
    plain = _plain_name(text)
    names = gpu_names()
    return plain if plain in names else next((name for name in names if is_named(_shipped(name), text)), None)


def is_named(gpu: GpuSpec, text: str) -> bool:
    """Whether a text is the name of this GPU, its own or one that a driver reports."""
    return _plain_name(text) in map(_plain_name, (gpu.name, *gpu.product_names))


def override_gpu(spec: GpuSpec, settings: Mapping[str, str | float]) -> GpuSpec:
    """A specification with figures replaced: `{"num_sms": 132, "tensor_flop_per_clock.bf16": 4096}`; texts of numbers do as well.

    Keys are FIGURES, or a rate table and a precision joined by a dot.  Raises SpecificationError for an unknown key, a value that is no
    number and a figure that cannot be.
    """
    document: Document = plain(spec)
    said: dict[str, list[str]] = {}
    for key, value in settings.items():
        table, _, precision = key.partition(".")
        part, name = (document[table], precision) if table in RATE_TABLES and precision else (document, key)
        if part is document and key not in FIGURES:
            known = (*FIGURES, *(f"{name}.PRECISION" for name in RATE_TABLES))
            raise SpecificationError(f"setting {key}: no such figure of a GPU; known: {', '.join(known)}")
        try:
            number = float("" if isinstance(value, bool) else value)
        except (TypeError, ValueError) as error:
            raise SpecificationError(f"setting {key} = {value!r:.40} is no number") from error
        said.setdefault(table, []).append(f"{precision} {part.get(name, math.nan):.6g} → {number:.15g}".lstrip())
        part[name] = number
    document["sources"] |= {name: f"{SET_BY_USER}: {', '.join(lines)}" for name, lines in said.items()}
    return gpu_from_document(document, "settings")


def gpu_from_document(document: Document, where: str) -> GpuSpec:
    """A GpuSpec from plain data (a TOML file, a bundle).  Raises SpecificationError, naming `where` and the key of a fault."""
    try:
        return read(GpuSpec, document)
    except FaultError as fault:
        raise SpecificationError(f"{where}: {fault}") from None


def document_of_gpu(spec: GpuSpec) -> Document:
    """The plain data of a specification without the names of products; `gpu_from_document` gives it back."""
    return {name: value for name, value in plain(spec).items() if name != "product_names"}


def near_match(word: str, known: Iterable[str]) -> str:
    """A question with the closest known word, or nothing where none is close."""
    from difflib import get_close_matches  # only on the way to an error; costs milliseconds

    close = get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _plain_name(text: str) -> str:
    plain = "-".join(text.lower().replace("_", "-").split())
    return plain.removeprefix("nvidia-")


@cache
def _shipped(name: str) -> GpuSpec:
    return read_file(GpuSpec, resource_folder("gpus") / f"{name}.toml", "GPU specification", SpecificationError)
