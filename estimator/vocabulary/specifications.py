"""GPU specifications: GpuSpec from TOML files, names of GPUs, overrides and lists of clocks from the command line."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Final, get_args

from estimator.vocabulary.documents import Document
from estimator.vocabulary.errors import OperatingPointError, SpecificationError, require
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.reader import FaultError, fields_of, plain, read, read_file
from estimator.vocabulary.resources import resource_folder, resource_names

FIGURES: Final = tuple(name for name, (hint, _) in fields_of(GpuSpec).items() if get_args(hint)[:1] in ((int,), (float,)))
"""Fields that hold one number."""

RATE_TABLES: Final = ("tensor_flop_per_clock", "cuda_flop_per_clock")


def gpu_names() -> tuple[str, ...]:
    """Names of the GPUs whose specification is shipped, sorted."""
    return resource_names("gpus")


def load_gpu(name_or_path: str | Path) -> GpuSpec:
    """The specification of a GPU by its name, a short name, its product name or a TOML file.

    Shipped specifications are read once.

    Raises SpecificationError for an unknown name, an unreadable file and an impossible figure.
    """
    require(name_or_path, (str, Path), "name_or_path", "the name of a GPU or a file")
    text = str(name_or_path)
    if names_file(name_or_path):
        return read_file(GpuSpec, Path(name_or_path), "GPU specification", SpecificationError)
    if (name := canonical_gpu_name(text)) is None:
        near = ", ".join(_near_names(_plain_name(text)))
        raise SpecificationError(
            f"unknown GPU {text!r}; {near and f'nearest: {near}; '}`estimate gpus` lists all; "
            "or describe it in a TOML file (docs/how-to/add-a-gpu.md) and give that"
        )
    return _shipped(name)


def names_file(word: str | Path) -> bool:
    """Whether a word names a TOML file, not an entry that is shipped: a path, or a text that ends in `.toml` or holds a path separator."""
    text = str(word)
    return isinstance(word, Path) or text.endswith(".toml") or "/" in text or "\\" in text


def _short_name(plain: str) -> str | None:
    """The name of the GPU with a short name; None for any other text.  Only files that hold the text are parsed."""
    quoted = json.dumps(plain).encode()
    holders = (name for name in gpu_names() if quoted in (resource_folder("gpus") / f"{name}.toml").read_bytes())
    return next((name for name in holders if plain in _shipped(name).short_names), None)


def _near_names(plain: str) -> dict[str, None]:
    """Names of the GPUs that are spelled most like a text, or that it contains."""
    from difflib import get_close_matches  # only for a GPU that is not known

    spellings = {word: name for name in gpu_names() for word in (name, *_shipped(name).short_names)}
    near = get_close_matches(plain, spellings) or [word for word in spellings if word in plain]
    return dict.fromkeys(spellings[word] for word in near)


def canonical_gpu_name(text: str) -> str | None:
    """The name of a GPU from its own name, a short one, or the name a driver reports ("NVIDIA A100-PCIE-40GB"); None if unknown."""
    plain = _plain_name(text)
    names = gpu_names()
    return plain if plain in names else _short_name(plain) or next((name for name in names if is_named(_shipped(name), text)), None)


def is_named(gpu: GpuSpec, text: str) -> bool:
    """Whether a text is the name of this GPU, its own or one that a driver reports."""
    return _plain_name(text) in map(_plain_name, (gpu.name, *gpu.product_names))


def override_gpu(spec: GpuSpec, settings: Mapping[str, str | float]) -> GpuSpec:
    """A specification with figures replaced: `{"num_sms": 132, "tensor_flop_per_clock.bf16": 4096}`; values may be texts of numbers.

    Keys are FIGURES, or a rate table and a precision joined by a dot.  Raises SpecificationError for an unknown key, a value that is no
    number and an impossible figure.
    """
    require(spec, GpuSpec, "spec", "a GpuSpec, as load_gpu gives it")
    require(settings, Mapping, "settings", 'a mapping such as {"num_sms": 132}')
    document: Document = plain(spec)
    for key, value in settings.items():
        table, _, precision = key.partition(".")
        part, name = (document[table], precision) if table in RATE_TABLES and precision else (document, key)
        if part is document and key not in FIGURES:
            known = (*FIGURES, *(f"{name}.PRECISION" for name in RATE_TABLES))
            raise SpecificationError(f"setting {key}: no such figure of a GPU; known: {', '.join(known)}")
        try:
            part[name] = float("" if isinstance(value, bool) else value)
        except (TypeError, ValueError) as error:
            raise SpecificationError(f"setting {key} = {value!r:.40} is no number") from error
        document["sources"][table] = "set by the user"
    return gpu_from_document(document, "settings")


def gpu_from_document(document: Document, where: str) -> GpuSpec:
    """A GpuSpec from plain data (a TOML file, a bundle).  Raises SpecificationError, naming `where` and the key of a fault."""
    try:
        return read(GpuSpec, document)
    except FaultError as fault:
        raise SpecificationError(f"{where}: {fault}") from None


def document_of_gpu(spec: GpuSpec) -> Document:
    """The plain data of a specification without what is not compared; `gpu_from_document` is its inverse."""
    compared = {one.name for one in fields(spec) if one.compare}
    return {name: value for name, value in plain(spec).items() if name in compared}


def _plain_name(text: str) -> str:
    return "-".join(text.lower().replace("_", "-").split()).removeprefix("nvidia-")


@cache
def _shipped(name: str) -> GpuSpec:
    return read_file(GpuSpec, resource_folder("gpus") / f"{name}.toml", "GPU specification", SpecificationError)


# Lists as people write them -----------------------------------------------------------------------------------------------------------

MOST_CLOCKS: Final = 10_000
"""Most clocks in a list, more than any GPU has; a longer list is a mistake in the step."""


def parse_clocks(text: str, every: Iterable[float]) -> tuple[float, ...]:
    """SM clocks [MHz], ascending, each once: numbers and ranges LO:HI:STEP (HI included), separated by commas, or "all" for `every` one.

    Raises OperatingPointError for a text that is no such list, an empty list and an impossible range.
    """
    if text.strip().lower() == "all":
        return tuple(every)
    return tuple(sorted(_numbers(text, "clock in MHz; write 510,900 or 510:1410:15 or all")))


def parse_whole_numbers(text: str, what: str) -> tuple[int, ...]:
    """Whole numbers, in the given order, each once: numbers and ranges LO:HI:STEP, separated by commas.  Raises OperatingPointError."""
    values = _numbers(text, f"{what}; write 1,8,32 or 128:1024:128")
    for value in values:
        if not value.is_integer() or value < 1.0:
            raise OperatingPointError(f"{text!r}: {value:g} is no {what}: write whole numbers of at least 1")
    return tuple(map(int, values))


def _numbers(text: str, what: str) -> dict[float, None]:
    numbers: dict[float, None] = {}
    for part in text.split(","):
        try:
            values = [float(piece) for piece in part.split(":")]
        except ValueError:
            values = []
        if len(values) not in (1, 3) or not all(0.0 <= value < float("inf") for value in values):
            raise OperatingPointError(f"{text!r} cannot be read as a list: {part.strip()!r} is no {what}")
        low, high, step = values if len(values) == 3 else (values[0], values[0], 1.0)
        if low > high or step <= 0.0:
            raise OperatingPointError(f"range {part!r} is empty: LO must not exceed HI, and STEP must be above 0")
        count = min((high - low) / step * (1.0 + 1e-12), MOST_CLOCKS)
        numbers |= dict.fromkeys(low + i * step for i in range(int(count) + 1))
        if len(numbers) > MOST_CLOCKS:
            raise OperatingPointError(f"{text!r} names more than {MOST_CLOCKS} values; use a larger step")
    return numbers
