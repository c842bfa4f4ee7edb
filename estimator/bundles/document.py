"""Bundle ↔ plain JSON data, every field checked.

Errors name the place by its keys (`groups.gemm.coefficients.math`); the reader puts the file before it.  The checks of single
values are in `estimator.bundles.checks`.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from estimator.bundles import checks, limits, sections
from estimator.bundles.content import (
    Bundle,
    Covariance,
    DatasetRecord,
    GroupCoefficients,
    HostCost,
    IdleTable,
    Matrix,
    PowerCoefficients,
    Provenance,
    VoltageTable,
)
from estimator.bundles.records import check_covariance
from estimator.errors import BundleError, SpecificationError
from estimator.frozen import FrozenMapping, thaw
from estimator.gpu import GpuSpec
from estimator.power import POWER_TERMS
from estimator.specifications import document_of_gpu, gpu_from_document
from estimator.tied_parameters import TIED_COEFFICIENTS

FORMAT: Final = "wattprint-bundle"
FORMAT_VERSION: Final = "1.0"
SEMANTIC_VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", re.ASCII)

TOP_FIELDS: Final = (
    "format", "format_version", "name", "version", "digest", "gpu", "environment", "sensor", "provenance", "host", "completion",
    "groups", "latency_parameters", "power", "voltage", "idle", "tile_predictors", "residuals", "uncertainty", "domain", "clocks",
    "errors", "instruction_energies", "block_models", "notes",
)  # fmt: skip
"""Every field of a bundle file, in the order in which they are written; all are there, some may be null or empty."""


def bundle_from_document(document: Mapping[str, Any]) -> Bundle:
    """The Bundle in plain data of the present format version; its digest is taken over unchecked.

    Raises BundleError, naming the keys, for a field that is missing, foreign, of the wrong kind, not finite or
    out of its range.
    """
    top = checks.fields_of(document, "the bundle", TOP_FIELDS)
    if top["format"] != FORMAT or top["format_version"] != FORMAT_VERSION:
        raise BundleError(f"format must be {FORMAT!r} {FORMAT_VERSION}, got {top['format']!r} {top['format_version']!r}")
    gpu = checks.fields_of(top["gpu"], "gpu", ("name", "uuid", "specification"))
    try:
        spec = gpu_from_document(checks.mapping_of(gpu["specification"], "gpu.specification"), "gpu.specification")
    except SpecificationError as error:
        raise BundleError(str(error)) from error
    if gpu["name"] != spec.name:
        raise BundleError(f"gpu.name = {gpu['name']!r} differs from gpu.specification.name = {spec.name!r}")
    version = checks.text_of(top["version"], "version")
    if not SEMANTIC_VERSION.fullmatch(version):
        raise BundleError(f"version = {version!r} must read MAJOR.MINOR.PATCH")
    return Bundle(
        name=checks.line_of(top["name"], "name"),
        version=version,
        digest=checks.text_of(top["digest"], "digest", empty=True),
        gpu=spec,
        gpu_uuid=checks.text_of(gpu["uuid"], "gpu.uuid", empty=True),
        environment=checks.each(top["environment"], "environment", lambda value, at: checks.text_of(value, at, empty=True)),
        sensor=None if top["sensor"] is None else checks.free(top["sensor"], "sensor"),
        provenance=_provenance(top["provenance"], "provenance"),
        host=_host(top["host"], "host"),
        completion=sections.completion(top["completion"], "completion"),
        groups=sections.by_group(_group)(top["groups"], "groups"),
        latency_parameters=_latency_parameters(top["latency_parameters"], "latency_parameters"),
        power=None if top["power"] is None else _power(top["power"], "power", spec),
        voltage=None if top["voltage"] is None else _voltage(top["voltage"], "voltage"),
        idle=None if top["idle"] is None else _idle(top["idle"], "idle"),
        tile_predictors=sections.tile_predictors(top["tile_predictors"], "tile_predictors"),
        residuals=sections.residuals(top["residuals"], "residuals"),
        uncertainty=sections.uncertainty(top["uncertainty"], "uncertainty"),
        domain=sections.by_group(_shape_ranges)(top["domain"], "domain"),
        clocks_mhz=checks.number_range(top["clocks"], "clocks", limits.CLOCK_MHZ),
        errors=sections.held_out_errors(top["errors"], "errors"),
        instruction_energies=sections.instruction_energies(top["instruction_energies"], "instruction_energies"),
        block_models=sections.block_models(top["block_models"], "block_models"),
        notes=tuple(checks.text_of(note, f"notes[{i}]") for i, note in enumerate(checks.list_of(top["notes"], "notes"))),
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
    group = checks.fields_of(value, at, ("coefficients", "ln_std", "identified", "rows"))
    coefficients = checks.named_numbers(group["coefficients"], f"{at}.coefficients", limits.COEFFICIENT_LIMITS)
    if not coefficients:
        raise BundleError(f"{at}.coefficients must not be empty")
    ln_std = checks.named_numbers(group["ln_std"], f"{at}.ln_std", dict.fromkeys(coefficients, limits.LN_STD))
    identified = checks.truths(group["identified"], f"{at}.identified")
    checks.refuse_unknown(identified, f"{at}.identified", coefficients)
    return GroupCoefficients(
        coefficients=coefficients, ln_std=ln_std, identified=identified, rows=checks.count(group["rows"], f"{at}.rows")
    )


def _host(value: Any, at: str) -> HostCost:
    host = checks.fields_of(value, at, HostCost.__slots__)
    return HostCost(
        launch_s=checks.number(host["launch_s"], f"{at}.launch_s", limits.LAUNCH_S),
        launch_ln_std=checks.deviation(host["launch_ln_std"], f"{at}.launch_ln_std", limits.LN_STD),
        source=checks.text_of(host["source"], f"{at}.source", empty=True),
        overlap_exponent=checks.number(host["overlap_exponent"], f"{at}.overlap_exponent", limits.OVERLAP_EXPONENT),
    )


def _power(value: Any, at: str, gpu: GpuSpec) -> PowerCoefficients:
    power = checks.fields_of(value, at, PowerCoefficients.__slots__)
    values: dict[str, Any] = {key: checks.number(power[key], f"{at}.{key}", own) for key, own in limits.POWER_LIMITS.items()}
    low, high = gpu.sm_clock_min_mhz, gpu.sm_clock_limit_mhz
    margin = limits.REFERENCE_CLOCK_MARGIN
    if not low * (1.0 - margin) <= values["reference_clock_mhz"] <= high * (1.0 + margin):
        raise BundleError(
            f"{at}.reference_clock_mhz = {values['reference_clock_mhz']!r} lies outside the clocks of {gpu.name}, {low:g} to {high:g} MHz"
        )
    for key in ("busy_std_w", "active_std_w"):
        values[key] = checks.deviation(power[key], f"{at}.{key}", limits.WATT)
    for key, own in (
        ("capacitance_f", limits.CAPACITANCE_F),
        ("capacitance_std_f", limits.CAPACITANCE_F),
        ("event_energy_j", limits.EVENT_ENERGY_J),
    ):
        values[key] = checks.named_numbers(power[key], f"{at}.{key}", dict.fromkeys(POWER_TERMS, own))
    fitted = _covariance({"names": power["terms"], "covariance": power["covariance"]}, at, limits.POWER_COVARIANCE)
    checks.refuse_unknown(fitted.names, f"{at}.terms", (*POWER_TERMS, *STATIC_TERMS))
    return PowerCoefficients(**values, terms=fitted.names, covariance=fitted.covariance, rows=checks.count(power["rows"], f"{at}.rows"))


STATIC_TERMS: Final = ("busy", "active")
"""Fitted terms of power that no event has."""


def _voltage(value: Any, at: str) -> VoltageTable:
    table = checks.fields_of(value, at, VoltageTable.__slots__)
    clocks = checks.ascending(table["sm_clock_mhz"], f"{at}.sm_clock_mhz", limits.CLOCK_MHZ)
    std = table["std_v"]
    return VoltageTable(
        sm_clock_mhz=clocks,
        voltage_v=checks.numbers_of(table["voltage_v"], f"{at}.voltage_v", limits.VOLTAGE_V, length=len(clocks)),
        std_v=None if std is None else checks.numbers_of(std, f"{at}.std_v", limits.VOLTAGE_STD_V, length=len(clocks)),
        source=checks.text_of(table["source"], f"{at}.source", empty=True),
    )


def _idle(value: Any, at: str) -> IdleTable:
    table = checks.fields_of(value, at, IdleTable.__slots__)
    clocks = checks.ascending(table["sm_clock_mhz"], f"{at}.sm_clock_mhz", limits.CLOCK_MHZ)
    std, temperature = table["std_w"], table["temperature_c"]
    return IdleTable(
        sm_clock_mhz=clocks,
        power_w=checks.numbers_of(table["power_w"], f"{at}.power_w", limits.IDLE_W, length=len(clocks)),
        std_w=None if std is None else checks.number(std, f"{at}.std_w", limits.WATT),
        source=checks.text_of(table["source"], f"{at}.source", empty=True),
        temperature_c=None if temperature is None else checks.number(temperature, f"{at}.temperature_c", limits.TEMPERATURE_C),
    )


def _provenance(value: Any, at: str) -> Provenance:
    origin = checks.fields_of(value, at, Provenance.__slots__)
    datasets = checks.list_of(origin["datasets"], f"{at}.datasets")
    return Provenance(
        created_utc=checks.text_of(origin["created_utc"], f"{at}.created_utc"),
        wattprint_version=checks.text_of(origin["wattprint_version"], f"{at}.wattprint_version"),
        commit=checks.text_of(origin["commit"], f"{at}.commit", empty=True),
        seed=checks.count(origin["seed"], f"{at}.seed", limits.SEED),
        datasets=tuple(_dataset(record, f"{at}.datasets[{i}]") for i, record in enumerate(datasets)),
    )


def _dataset(value: Any, at: str) -> DatasetRecord:
    record = checks.fields_of(value, at, DatasetRecord.__slots__)
    return DatasetRecord(
        name=checks.text_of(record["name"], f"{at}.name"),
        sha256=checks.text_of(record["sha256"], f"{at}.sha256"),
        kind=checks.text_of(record["kind"], f"{at}.kind"),
        rows=checks.count(record["rows"], f"{at}.rows"),
        used=checks.count(record["used"], f"{at}.used"),
        rejected=checks.each(record["rejected"], f"{at}.rejected", checks.count),
    )


def _shape_ranges(value: Any, at: str) -> FrozenMapping[tuple[float, float]]:
    """Ranges of known shape fields."""
    ranges = checks.each(value, at, lambda item, place: checks.number_range(item, place, limits.SIZE))
    checks.refuse_unknown(ranges, at, sections.ALL_FIELDS)
    return ranges


def _latency_parameters(value: Any, at: str) -> Covariance:
    """Covariance of the logarithms of coefficients of kernel groups, or of coefficients that several groups share."""
    found = _covariance(value, at, limits.LN_COVARIANCE)
    for i, name in enumerate(found.names):
        group, _, coefficient = name.rpartition(".")
        if name not in TIED_COEFFICIENTS and (not group or coefficient not in limits.COEFFICIENT_LIMITS):
            raise BundleError(f"{at}.names[{i}] = {name[:60]!r} is neither GROUP.COEFFICIENT nor one of {', '.join(TIED_COEFFICIENTS)}")
    return found


def _covariance(value: Any, at: str, own: limits.Limits) -> Covariance:
    """Names and their covariance matrix."""
    both = checks.fields_of(value, at, Covariance.__slots__)
    names = tuple(checks.text_of(name, f"{at}.names[{i}]") for i, name in enumerate(checks.list_of(both["names"], f"{at}.names")))
    rows = checks.list_of(both["covariance"], f"{at}.covariance")
    if len(rows) != len(names):
        raise BundleError(f"{at}.covariance has {len(rows)} rows for {len(names)} names")
    matrix: Matrix = tuple(checks.numbers_of(row, f"{at}.covariance[{i}]", own, length=len(names)) for i, row in enumerate(rows))
    check_covariance(matrix, f"{at}.covariance")
    return Covariance(names=names, covariance=matrix)
