"""Bundle ↔ plain JSON data, every field checked.

Errors name the place by its keys (`groups.gemm.coefficients.math`); the reader puts the file before it.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Any, Final, TypeVar

from estimator.bundles.content import (
    Bundle,
    Covariance,
    DatasetRecord,
    GroupCoefficients,
    HostCost,
    IdleTable,
    Matrix,
    Numbers,
    PowerCoefficients,
    Provenance,
    VoltageTable,
)
from estimator.coefficients import COEFFICIENTS
from estimator.errors import BundleError, SpecificationError
from estimator.frozen import FrozenMapping, thaw
from estimator.power import POWER_TERMS
from estimator.specifications import document_of_gpu, gpu_from_document, near_match

T = TypeVar("T")

FORMAT: Final = "wattprint-bundle"
FORMAT_VERSION: Final = "1.0"
SEMANTIC_VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", re.ASCII)

TOP_FIELDS: Final = (
    "format", "format_version", "name", "version", "digest", "gpu", "environment", "sensor", "provenance", "host", "completion",
    "groups", "latency_parameters", "power", "voltage", "idle", "tile_predictors", "residuals", "uncertainty", "domain", "clocks",
    "errors", "instruction_energies", "block_models", "notes",
)  # fmt: skip
"""Every field of a bundle file, in the order in which they are written; all are there, some may be null or empty."""

COVARIANCE_ASYMMETRY: Final = 1e-9
"""Largest difference of mirrored entries, relative to their diagonal [1]: rounding, no more."""


def bundle_from_document(document: Mapping[str, Any]) -> Bundle:
    """The Bundle in plain data of the present format version; its digest is taken over unchecked.

    Raises BundleError, naming the keys, for a field that is missing, foreign, of the wrong kind, not finite or
    out of its range.
    """
    top = _fields(document, "the bundle", TOP_FIELDS)
    if top["format"] != FORMAT or top["format_version"] != FORMAT_VERSION:
        raise BundleError(f"format must be {FORMAT!r} {FORMAT_VERSION}, got {top['format']!r} {top['format_version']!r}")
    gpu = _fields(top["gpu"], "gpu", ("name", "uuid", "specification"))
    try:
        spec = gpu_from_document(_mapping(gpu["specification"], "gpu.specification"), "gpu.specification")
    except SpecificationError as error:
        raise BundleError(str(error)) from error
    if gpu["name"] != spec.name:
        raise BundleError(f"gpu.name = {gpu['name']!r} differs from gpu.specification.name = {spec.name!r}")
    version = _text(top["version"], "version")
    if not SEMANTIC_VERSION.fullmatch(version):
        raise BundleError(f"version = {version!r} must read MAJOR.MINOR.PATCH")
    return Bundle(
        name=_line(top["name"], "name"),
        version=version,
        digest=_text(top["digest"], "digest", empty=True),
        gpu=spec,
        gpu_uuid=_text(gpu["uuid"], "gpu.uuid", empty=True),
        environment=_each(top["environment"], "environment", lambda value, at: _text(value, at, empty=True)),
        sensor=None if top["sensor"] is None else _free(top["sensor"], "sensor"),
        provenance=_provenance(top["provenance"], "provenance"),
        host=_host(top["host"], "host"),
        completion=_text(top["completion"], "completion", empty=True),
        groups=_each(top["groups"], "groups", _group),
        latency_parameters=_covariance(top["latency_parameters"], "latency_parameters"),
        power=None if top["power"] is None else _power(top["power"], "power"),
        voltage=None if top["voltage"] is None else _voltage(top["voltage"], "voltage"),
        idle=None if top["idle"] is None else _idle(top["idle"], "idle"),
        tile_predictors=_each(top["tile_predictors"], "tile_predictors", _free),
        residuals=_each(top["residuals"], "residuals", _free),
        uncertainty=_free(top["uncertainty"], "uncertainty"),
        domain=_each(top["domain"], "domain", lambda value, at: _each(value, at, _range)),
        clocks_mhz=_range(top["clocks"], "clocks", low=0.0),
        errors=tuple(_free(row, f"errors[{i}]") for i, row in enumerate(_list(top["errors"], "errors"))),
        instruction_energies=_free(top["instruction_energies"], "instruction_energies"),
        block_models=_free(top["block_models"], "block_models"),
        notes=tuple(_text(note, f"notes[{i}]") for i, note in enumerate(_list(top["notes"], "notes"))),
    )


def document_of(bundle: Bundle) -> dict[str, Any]:
    """The plain data of a bundle, ready for JSON, in the present format version; the digest as it stands in the bundle."""
    provenance, power, voltage, idle = bundle.provenance, bundle.power, bundle.voltage, bundle.idle
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "name": bundle.name,
        "version": bundle.version,
        "digest": bundle.digest,
        "gpu": {"name": bundle.gpu.name, "uuid": bundle.gpu_uuid, "specification": document_of_gpu(bundle.gpu)},
        "environment": thaw(bundle.environment),
        "sensor": thaw(bundle.sensor),
        "provenance": {**_plain(provenance), "datasets": [_plain(record) for record in provenance.datasets]},
        "host": _plain(bundle.host),
        "completion": bundle.completion,
        "groups": {key: _plain(group) for key, group in bundle.groups.items()},
        "latency_parameters": _plain(bundle.latency_parameters),
        "power": None if power is None else _plain(power),
        "voltage": None if voltage is None else _plain(voltage),
        "idle": None if idle is None else _plain(idle),
        "tile_predictors": thaw(bundle.tile_predictors),
        "residuals": thaw(bundle.residuals),
        "uncertainty": thaw(bundle.uncertainty),
        "domain": thaw(bundle.domain),
        "clocks": list(bundle.clocks_mhz),
        "errors": thaw(bundle.errors),
        "instruction_energies": thaw(bundle.instruction_energies),
        "block_models": thaw(bundle.block_models),
        "notes": list(bundle.notes),
    }


def _plain(value: Any) -> dict[str, Any]:
    """The fields of a small frozen dataclass as plain data; what is unknown, nan inside, is null in the file."""
    plain = {name: thaw(getattr(value, name)) for name in value.__slots__}
    return {name: None if isinstance(item, float) and math.isnan(item) else item for name, item in plain.items()}


def _group(value: Any, at: str) -> GroupCoefficients:
    group = _fields(value, at, ("coefficients", "ln_std", "identified", "rows"))
    coefficients = _named_numbers(group["coefficients"], f"{at}.coefficients", COEFFICIENTS)
    if not coefficients:
        raise BundleError(f"{at}.coefficients must not be empty")
    ln_std = _named_numbers(group["ln_std"], f"{at}.ln_std", coefficients)
    identified = _each(group["identified"], f"{at}.identified", _truth)
    _known(identified, f"{at}.identified", coefficients)
    return GroupCoefficients(coefficients=coefficients, ln_std=ln_std, identified=identified, rows=_count(group["rows"], f"{at}.rows"))


def _host(value: Any, at: str) -> HostCost:
    host = _fields(value, at, HostCost.__slots__)
    return HostCost(
        launch_s=_number(host["launch_s"], f"{at}.launch_s", low=0.0),
        launch_ln_std=_deviation(host["launch_ln_std"], f"{at}.launch_ln_std"),
        source=_text(host["source"], f"{at}.source", empty=True),
    )


def _power(value: Any, at: str) -> PowerCoefficients:
    power = _fields({**LATER_POWER_FIELDS, **_mapping(value, at)}, at, PowerCoefficients.__slots__)
    values: dict[str, Any] = {}
    for key in LATER_POWER_FIELDS:
        values[key] = _number(power[key], f"{at}.{key}", low=-math.inf if key == "operating_c" else 0.0)
    for key in ("reference_clock_mhz", "reference_voltage_v", "voltage_exponent", "concavity", "l2_credit", "busy_w", "active_w"):
        values[key] = _number(power[key], f"{at}.{key}", low=0.0)
    for key in ("reference_clock_mhz", "reference_voltage_v", "concavity", "warm_knee", "warm_sharpness"):
        if values[key] == 0.0:
            raise BundleError(f"{at}.{key} must be above 0")
    for key in ("busy_std_w", "active_std_w"):
        values[key] = _deviation(power[key], f"{at}.{key}")
    for key in ("capacitance_f", "capacitance_std_f", "event_energy_j"):
        values[key] = _named_numbers(power[key], f"{at}.{key}", POWER_TERMS)
    fitted = _covariance({"names": power["terms"], "covariance": power["covariance"]}, at)
    return PowerCoefficients(**values, terms=fitted.names, covariance=fitted.covariance, rows=_count(power["rows"], f"{at}.rows"))


LATER_POWER_FIELDS: Final = {
    "warm_knee": 0.8,
    "warm_sharpness": 4.0,
    "leakage_w_per_k": 0.0,
    "leakage_std_w_per_k": 0.0,
    "operating_c": 0.0,
    "operating_k_per_w": 0.0,
}
"""Fields of power that the first bundles lack, with what those meant."""


def _voltage(value: Any, at: str) -> VoltageTable:
    table = _fields(value, at, VoltageTable.__slots__)
    clocks = _ascending(table["sm_clock_mhz"], f"{at}.sm_clock_mhz")
    std = table["std_v"]
    return VoltageTable(
        sm_clock_mhz=clocks,
        voltage_v=_numbers(table["voltage_v"], f"{at}.voltage_v", low=0.0, length=len(clocks)),
        std_v=None if std is None else _numbers(std, f"{at}.std_v", low=0.0, length=len(clocks)),
        source=_text(table["source"], f"{at}.source", empty=True),
    )


def _idle(value: Any, at: str) -> IdleTable:
    table = _fields(value, at, IdleTable.__slots__)
    clocks = _ascending(table["sm_clock_mhz"], f"{at}.sm_clock_mhz")
    std, temperature = table["std_w"], table["temperature_c"]
    return IdleTable(
        sm_clock_mhz=clocks,
        power_w=_numbers(table["power_w"], f"{at}.power_w", low=0.0, length=len(clocks)),
        std_w=None if std is None else _number(std, f"{at}.std_w", low=0.0),
        source=_text(table["source"], f"{at}.source", empty=True),
        temperature_c=None if temperature is None else _number(temperature, f"{at}.temperature_c"),
    )


def _provenance(value: Any, at: str) -> Provenance:
    origin = _fields(value, at, Provenance.__slots__)
    datasets = _list(origin["datasets"], f"{at}.datasets")
    return Provenance(
        created_utc=_text(origin["created_utc"], f"{at}.created_utc"),
        wattprint_version=_text(origin["wattprint_version"], f"{at}.wattprint_version"),
        commit=_text(origin["commit"], f"{at}.commit", empty=True),
        seed=_count(origin["seed"], f"{at}.seed"),
        datasets=tuple(_dataset(record, f"{at}.datasets[{i}]") for i, record in enumerate(datasets)),
    )


def _dataset(value: Any, at: str) -> DatasetRecord:
    record = _fields(value, at, DatasetRecord.__slots__)
    return DatasetRecord(
        name=_text(record["name"], f"{at}.name"),
        sha256=_text(record["sha256"], f"{at}.sha256"),
        kind=_text(record["kind"], f"{at}.kind"),
        rows=_count(record["rows"], f"{at}.rows"),
        used=_count(record["used"], f"{at}.used"),
        rejected=_each(record["rejected"], f"{at}.rejected", _count),
    )


def _covariance(value: Any, at: str) -> Covariance:
    """Names and a symmetric matrix of the same length with a diagonal that is not negative."""
    both = _fields(value, at, Covariance.__slots__)
    names = tuple(_text(name, f"{at}.names[{i}]") for i, name in enumerate(_list(both["names"], f"{at}.names")))
    rows = _list(both["covariance"], f"{at}.covariance")
    if len(rows) != len(names):
        raise BundleError(f"{at}.covariance has {len(rows)} rows for {len(names)} names")
    matrix: Matrix = tuple(_numbers(row, f"{at}.covariance[{i}]", length=len(names)) for i, row in enumerate(rows))
    for i, row in enumerate(matrix):
        if row[i] < 0.0:
            raise BundleError(f"{at}.covariance[{i}][{i}] = {row[i]!r}: a variance must not be negative")
        for j in range(i):
            if row[j] != matrix[j][i] and abs(row[j] - matrix[j][i]) > COVARIANCE_ASYMMETRY * math.sqrt(row[i] * matrix[j][j]):
                raise BundleError(f"{at}.covariance is not symmetric at [{i}][{j}]")
    return Covariance(names=names, covariance=matrix)


def _mapping(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BundleError(f"{at} must be an object, got {_kind(value)}")
    return value


def _fields(value: Any, at: str, names: Collection[str]) -> Mapping[str, Any]:
    """An object with exactly the fields `names`."""
    mapping = _mapping(value, at)
    for key in mapping:
        if key not in names:
            raise BundleError(f"{at} has an unknown field {key!r}{near_match(key, names)}")
    for name in names:
        if name not in mapping:
            raise BundleError(f"{at} lacks the field {name!r}")
    return mapping


def _each(value: Any, at: str, check: Callable[[Any, str], T]) -> FrozenMapping[T]:
    return FrozenMapping({key: check(item, f"{at}.{key}") for key, item in _mapping(value, at).items()})


def _known(names: Collection[str], at: str, known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise BundleError(f"{at} has an unknown name {name!r}{near_match(name, known)}")


def _named_numbers(value: Any, at: str, known: Collection[str]) -> FrozenMapping[float]:
    """Numbers that are not negative, under known names."""
    numbers = _each(value, at, lambda item, place: _number(item, place, low=0.0))
    _known(numbers, at, known)
    return numbers


def _list(value: Any, at: str) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise BundleError(f"{at} must be a list, got {_kind(value)}")
    return value


def _text(value: Any, at: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise BundleError(f"{at} must be a text, got {_kind(value)}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise BundleError(f"{at} holds half a character (a lone surrogate)")
    return value


def _line(value: Any, at: str) -> str:
    """A text that stands in every table: on one line, without control characters."""
    if not _text(value, at).isprintable():
        raise BundleError(f"{at} holds a character that cannot be printed")
    return str(value)


def _truth(value: Any, at: str) -> bool:
    if not isinstance(value, bool):
        raise BundleError(f"{at} must be true or false, got {_kind(value)}")
    return value


def _number(value: Any, at: str, *, low: float = -math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BundleError(f"{at} must be a number, got {_kind(value)}")
    try:
        number = float(value)
    except OverflowError as error:
        raise BundleError(f"{at} is too large") from error
    if not math.isfinite(number):
        raise BundleError(f"{at} = {number!r} must be finite")
    if number < low:
        raise BundleError(f"{at} = {number!r} must not be negative")
    return number


def _deviation(value: Any, at: str) -> float:
    """A standard deviation; null, which is unknown, becomes nan."""
    return math.nan if value is None else _number(value, at, low=0.0)


def _count(value: Any, at: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BundleError(f"{at} must be a whole number, 0 or more, got {_kind(value)}")
    return value


def _finite_floats(items: Collection[Any]) -> bool:
    """Whether all are finite floats, and there is one."""
    return set(map(type, items)) == {float} and all(map(math.isfinite, items))


def _numbers(value: Any, at: str, *, low: float = -math.inf, length: int) -> Numbers:
    items = _list(value, at)
    if _finite_floats(items) and min(items) >= low:  # long columns, at C speed
        numbers: Numbers = tuple(items)
    else:
        numbers = tuple(_number(item, f"{at}[{i}]", low=low) for i, item in enumerate(items))
    if len(numbers) != length:
        raise BundleError(f"{at} has {len(numbers)} values where {length} are needed")
    return numbers


def _ascending(value: Any, at: str) -> Numbers:
    items = _list(value, at)
    numbers = _numbers(items, at, low=0.0, length=len(items))
    if not numbers or any(left >= right for left, right in pairwise(numbers)):
        raise BundleError(f"{at} must ascend and hold at least one clock")
    return numbers


def _range(value: Any, at: str, *, low: float = -math.inf) -> tuple[float, float]:
    first, last = _numbers(value, at, low=low, length=2)
    if first > last:
        raise BundleError(f"{at} = [{first!r}, {last!r}] must ascend")
    return first, last


LARGEST_WHOLE: Final = 2**63
"""Beyond this no count in a bundle means anything, and floats run out of range [1]."""


def _free(value: Any, at: str) -> Any:
    """An object whose inside the format leaves open: any JSON with finite numbers, frozen."""
    return _frozen(_mapping(value, at), at)


def _frozen(value: Any, at: str) -> Any:
    if isinstance(value, list | tuple):
        if _finite_floats(value):
            return tuple(value)
        return tuple(_frozen(item, f"{at}[{i}]") for i, item in enumerate(value))
    if isinstance(value, Mapping):
        return FrozenMapping({key: _frozen(item, f"{at}.{key}") for key, item in value.items()})
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        raise BundleError(f"{at} is a whole number of more than 64 bits")
    return _number(value, at) if isinstance(value, float) else _whole(value, at)


def _whole(value: Any, at: str) -> int:
    if not isinstance(value, int):
        raise BundleError(f"{at} is no JSON value: {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a truth value", str: "a text", list: "a list", tuple: "a list", dict: "an object"}
    return names.get(type(value), repr(value)[:40])
