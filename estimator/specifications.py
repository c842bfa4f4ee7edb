"""GPU specifications: TOML files into GpuSpec, names of GPUs, overrides from the command line."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any, Final

from estimator.documents import parse_toml
from estimator.errors import ArgumentError, SpecificationError
from estimator.frozen import FrozenMapping
from estimator.gpu import ClockTable, GpuSpec
from estimator.kinds import shown
from estimator.quantities import BYTES_PER_ELEMENT
from estimator.regular_files import read_regular
from estimator.resources import resource_folder, resource_names

FIELD_LIMITS: Final[dict[str, tuple[float, float, str]]] = {
    "num_sms": (1, 1024, "SMs"),
    "sm_clock_max_mhz": (10, 10_000, "MHz"),
    "sm_clock_limit_mhz": (10, 10_000, "MHz"),
    "sm_clock_min_mhz": (10, 10_000, "MHz"),
    "sm_clock_step_mhz": (0.5, 1_000, "MHz"),
    "memory_clock_mhz": (10, 100_000, "MHz"),
    "dram_bytes_per_s": (1e9, 1e14, "byte/s"),
    "dram_bytes": (1e8, 1e14, "byte"),
    "l2_bytes": (1e4, 1e11, "byte"),
    "l2_bytes_per_clock": (16, 1e6, "byte per clock"),
    "shared_bytes_per_clock": (4, 1e4, "byte per clock and SM"),
    "shared_bytes_per_sm": (1024, 1e8, "byte"),
    "registers_per_sm": (1024, 1e7, "registers"),
    "warps_per_sm": (1, 1024, "warps"),
    "blocks_per_sm": (1, 1024, "blocks"),
    "sfu_op_per_clock": (0.1, 1e4, "operations per clock and SM"),
    "power_limit_w": (1, 1e5, "W"),
}
"""Low, high and unit of every figure; wide enough for any GPU, narrow enough to catch a wrong unit."""

RATE_LIMITS: Final = (0.1, 1e6, "flop per clock and SM")
TABLE_LIMITS: Final[dict[str, tuple[float, float, str]]] = {"voltage_v": (0.2, 2.0, "V"), "idle_w": (0.01, 1e4, "W")}
INTEGER_FIELDS: Final = frozenset({"num_sms", "registers_per_sm", "warps_per_sm", "blocks_per_sm"})
TEXT_FIELDS: Final = ("name", "architecture", "compute_capability")
RATE_TABLES: Final = ("tensor_flop_per_clock", "cuda_flop_per_clock")
FILE_FIELDS: Final = frozenset(field.name for field in fields(GpuSpec))
"""Keys of a specification file."""

MAX_FILE_BYTES: Final = 1 << 20

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
    if not isinstance(name_or_path, str | Path):
        raise ArgumentError(f"name_or_path must be the name of a GPU or a file, got {name_or_path!r:.40} ({type(name_or_path).__name__})")
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text:
        return _read_file(Path(name_or_path))
    name = canonical_gpu_name(text)
    if name is None:
        names = gpu_names()
        close = near_match(_plain_name(text), names)
        raise SpecificationError(f"unknown GPU {text!r}{close}; known: {', '.join(names)}; or give a TOML file")
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

    Keys are the numeric fields of GpuSpec, or a rate table and a precision joined by a dot.  Raises
    SpecificationError for an unknown key, a value that is no number and a figure that cannot be.
    """
    changes: dict[str, Any] = {}
    given = {key: _setting_text(value, f"setting {key}") for key, value in settings.items()}
    for key, text in given.items():
        where = f"setting {key}"
        table, _, precision = key.partition(".")
        if table in RATE_TABLES and precision:
            rates = dict(changes.get(table, getattr(spec, table)))
            rates[precision] = _parsed(text, where)
            changes[table] = _rates(rates, table, "setting")
        elif key in FIELD_LIMITS:
            changes[key] = _figure(_parsed(text, where), key, "setting")
        else:
            known = (*FIELD_LIMITS, *(f"{name}.PRECISION" for name in RATE_TABLES))
            raise SpecificationError(f"{where}: no such figure of a GPU{near_match(key, known)}; known: {', '.join(known)}")
    before = {key: getattr(spec, key.partition(".")[0]) for key in settings}
    was = {key: value.get(key.partition(".")[2], math.nan) if isinstance(value, Mapping) else value for key, value in before.items()}
    texts: dict[str, list[str]] = {}
    for key, text in given.items():
        texts.setdefault(key.partition(".")[0], []).append(f"{key.partition('.')[2]} {was[key]:.6g} → {text.strip()}".lstrip())
    sources = FrozenMapping({**spec.sources, **{name: f"{SET_BY_USER}: {', '.join(lines)}" for name, lines in texts.items()}})
    changed = replace(spec, **changes, sources=sources)
    _check_clocks(changed, "settings")
    return changed


def gpu_from_document(document: Mapping[str, Any], where: str) -> GpuSpec:
    """A GpuSpec from plain data (a TOML file, a bundle), every key and figure checked; errors name `where` and the key.

    Raises SpecificationError.
    """
    for key in document:
        if key not in FILE_FIELDS:
            raise SpecificationError(f"{where}: unknown key {key!r}{near_match(key, FILE_FIELDS)}")
        if document[key] is None:
            raise SpecificationError(f"{where}: {key} is null; leave out what is not known")
    values: dict[str, Any] = {key: _text(document.get(key), key, where) for key in TEXT_FIELDS}
    values.update({key: _figure(document.get(key), key, where) for key in FIELD_LIMITS})
    values.update({key: _rates(document.get(key), key, where) for key in RATE_TABLES})
    values.update({key: _table(document.get(key), key, where) for key in TABLE_LIMITS})
    sources = document.get("sources", {})
    if not isinstance(sources, Mapping):
        raise SpecificationError(f"{where}: sources must be a table of texts")
    for key, source in sources.items():
        if key not in FILE_FIELDS:
            raise SpecificationError(f"{where}: sources.{key} names no figure{near_match(key, FILE_FIELDS)}")
        _text(source, f"sources.{key}", where)
    products = document.get("product_names", [])
    if not isinstance(products, list | tuple) or not all(isinstance(product, str) for product in products):
        raise SpecificationError(f"{where}: product_names must be a list of texts")
    spec = GpuSpec(**values, sources=FrozenMapping(sources), product_names=tuple(products))
    _check_clocks(spec, where)
    return spec


def document_of_gpu(spec: GpuSpec) -> dict[str, Any]:
    """The plain data of a specification without the names of products; `gpu_from_document` gives it back."""
    document: dict[str, Any] = {}
    for field in (item for item in fields(GpuSpec) if item.compare):
        value = getattr(spec, field.name)
        if isinstance(value, ClockTable):
            value = {"source": value.source, "sm_clock_mhz": list(value.sm_clock_mhz), "value": list(value.value)}
        elif isinstance(value, Mapping):
            value = dict(value)
        if value is not None:
            document[field.name] = value
    return document


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
    return _read_file(resource_folder("gpus") / f"{name}.toml")


def _read_file(path: Path) -> GpuSpec:
    """The specification in a TOML file."""
    where = f"GPU specification {path}"
    try:
        document = parse_toml(read_regular(path, MAX_FILE_BYTES))
    except OSError as error:
        raise SpecificationError(f"{where}: cannot be read ({error.strerror}); known names: {', '.join(gpu_names())}") from error
    except ValueError as error:
        raise SpecificationError(f"{where}: not a TOML file ({error})") from error
    return gpu_from_document(document, where)


def _text(value: object, key: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SpecificationError(f"{where}: {key} must be a text, got {shown(value)}")
    return value


def _setting_text(value: str | float, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SpecificationError(f"{where} = {shown(value)} is no number")
    return f"{float(value):.15g}"


def _parsed(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise SpecificationError(f"{where} = {text!r} is no number") from error


def _number(value: object, key: str, where: str, limits: tuple[float, float, str]) -> float:
    """A finite number within limits; what is missing, a text or a truth value is refused."""
    low, high, unit = limits
    if value is None:
        raise SpecificationError(f"{where}: {key} is missing; give it in {unit}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecificationError(f"{where}: {key} must be a number in {unit}, got {shown(value)}")
    if not low <= value <= high:  # also refuses NaN
        raise SpecificationError(f"{where}: {key} = {shown(value)} lies outside {low:g} to {high:g} {unit}")
    return float(value)


def _figure(value: object, key: str, where: str) -> float | int:
    number = _number(value, key, where, FIELD_LIMITS[key])
    if key not in INTEGER_FIELDS:
        return number
    if number != int(number):
        raise SpecificationError(f"{where}: {key} = {shown(value)} must be a whole number")
    return int(number)


def _rates(value: object, key: str, where: str) -> FrozenMapping[float]:
    if not isinstance(value, Mapping):
        raise SpecificationError(f"{where}: {key} must be a table of rates by precision")
    for precision in value:
        if precision not in BYTES_PER_ELEMENT:
            raise SpecificationError(f"{where}: {key}.{precision} is no precision{near_match(precision, BYTES_PER_ELEMENT)}")
    if key == "cuda_flop_per_clock" and "fp32" not in value:
        raise SpecificationError(f"{where}: {key}.fp32 is missing; it gives the number of lanes")
    return FrozenMapping({precision: _number(rate, f"{key}.{precision}", where, RATE_LIMITS) for precision, rate in value.items()})


def _table(value: object, key: str, where: str) -> ClockTable | None:
    """A table over the SM clock, ascending; None where the GPU has none."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != {"sm_clock_mhz", "value", "source"}:
        raise SpecificationError(f"{where}: {key} must hold exactly sm_clock_mhz, value and source")
    columns = []
    for name, limits in (("sm_clock_mhz", FIELD_LIMITS["sm_clock_max_mhz"]), ("value", TABLE_LIMITS[key])):
        column = value[name]
        if not isinstance(column, list | tuple) or not column:
            raise SpecificationError(f"{where}: {key}.{name} must be a list of numbers")
        columns.append(tuple(_number(item, f"{key}.{name}[{i}]", where, limits) for i, item in enumerate(column)))
    clocks, values = columns
    if len(clocks) != len(values):
        raise SpecificationError(f"{where}: {key} has {len(clocks)} clocks and {len(values)} values; the lengths must agree")
    if any(left >= right for left, right in pairwise(clocks)):
        raise SpecificationError(f"{where}: {key}.sm_clock_mhz must ascend")
    return ClockTable(sm_clock_mhz=clocks, value=values, source=_text(value["source"], f"{key}.source", where))


def _check_clocks(spec: GpuSpec, where: str) -> None:
    low, high = spec.sm_clock_min_mhz, spec.sm_clock_limit_mhz
    if not low <= spec.sm_clock_max_mhz <= high:
        raise SpecificationError(
            f"{where}: sm_clock_max_mhz = {spec.sm_clock_max_mhz:g} must lie within sm_clock_min_mhz = {low:g} "
            f"and sm_clock_limit_mhz = {high:g}; change these as well"
        )
