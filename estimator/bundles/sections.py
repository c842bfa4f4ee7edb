"""Checks of the sections of a bundle that hold tables: tile predictors, residual tiers, stated uncertainty, held-out errors, energies
of instructions, block-count models.

What each means stands where it is used (`estimator.tiles`, `estimator.residuals`, `estimator.spread`, `estimator.instructions`,
`estimator.blocks`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from estimator.bundles import checks, limits
from estimator.bundles.records import (
    NOTHING,
    Check,
    bounded,
    check_covariance,
    column,
    items,
    one_of,
    or_null,
    quantity,
    record,
    table,
    text,
    whole,
)
from estimator.errors import BundleError, EstimatorError
from estimator.frozen import FrozenMapping
from estimator.kriging import SHARES
from estimator.quantities import BYTES_PER_ELEMENT
from estimator.specifications import near_match
from estimator.workload import FAMILY_FIELDS, FAMILY_OPERATORS

COMPLETIONS: Final = ("eager-pytorch-1",)
"""Names of rule sets that complete operator lists, as in `estimator.completion`, whose rules opening a bundle does without."""

SEVERAL: Final = " | "
"""Between the rule sets of a bundle whose runs were completed in different ways."""

ALL_FIELDS: Final = frozenset(name for fields in FAMILY_FIELDS.values() for name in fields)


def completion(value: Any, at: str) -> str:
    """Names of known rule sets, each with the rules that were left out; "" for none."""
    found = checks.text_of(value, at, empty=True)
    if not found or found in COMPLETIONS:
        return found
    from estimator.completion import parse_completion  # brings every rule: only for what is out of the ordinary

    for part in found.split(SEVERAL):
        try:
            parse_completion(part)
        except EstimatorError as error:
            raise BundleError(f"{at} = {found[:60]!r}: {error}") from error
    return found


def group_name(name: str, at: str) -> None:
    """Refuse the name of a group of kernels whose family, operator or precision nobody knows."""
    family, *rest = name.split(".")
    if family not in FAMILY_FIELDS:
        raise BundleError(
            f"{at} has an unknown group {name[:60]!r}{near_match(family, FAMILY_FIELDS)}; families: {', '.join(FAMILY_FIELDS)}"
        )
    for word, known in zip(rest, (FAMILY_OPERATORS[family], BYTES_PER_ELEMENT), strict=False):
        if word not in known:
            raise BundleError(f"{at} has an unknown group {name[:60]!r}{near_match(word, known)}; known: {', '.join(known)}")


def by_group(check_item: Check) -> Check:
    """An object of items by group of kernels."""

    def check(value: Any, at: str) -> FrozenMapping[Any]:
        for name in checks.mapping_of(value, at):
            group_name(name, at)
        return checks.each(value, at, check_item)

    return check


# Tile predictors -----------------------------------------------------------------------------------------------------------------

_TILES: Final[dict[str, Check]] = {
    "tile_m": column(limits.TILE),
    "tile_n": column(limits.TILE),
    "split": column(limits.SPLIT),
}
_CHOICE: Final = record({"kind": one_of(("choice",)), **_TILES, "liking": column(limits.LIKING), "sharpness": quantity(limits.SHARPNESS)})
_TREE: Final = record(
    {
        "feature": column((-1, limits.COUNT[1], ""), whole_numbers=True),
        "threshold": column(limits.LOG_THRESHOLD),
        "left": column(limits.COUNT, whole_numbers=True),
        "right": column(limits.COUNT, whole_numbers=True),
        **_TILES,
    }
)


def _tile_predictor(value: Any, at: str) -> FrozenMapping[Any]:
    mapping = checks.mapping_of(value, at)
    found: FrozenMapping[Any] = (_CHOICE if "kind" in mapping else _TREE)(mapping, at)
    columns = [name for name in found if name not in ("kind", "sharpness")]
    count = len(found["tile_m"])
    _same_length(found, columns, count, at)
    if "kind" not in found:
        _within(found["feature"], f"{at}.feature", TREE_FEATURES)
        for name in ("left", "right"):
            _within(found[name], f"{at}.{name}", count)
    return found


TREE_FEATURES: Final = 6
"""Features that the nodes of a decision tree ask for (`estimator.tiles.predictor`)."""


def _same_length(columns: Mapping[str, Any], names: list[str], count: int, at: str, *, shared: bool = False) -> None:
    """shared: a column whose entries are all alike may be one entry long."""
    for name in names:
        length = len(columns[name])
        if length != count and not (shared and length == 1):
            raise BundleError(f"{at}.{name} has {length} values where {count} are needed")


def _within(places: tuple[int, ...], at: str, count: int) -> None:
    if max(places) >= count:
        raise BundleError(f"{at} = {max(places)} points to none of the {count} that there are")


tile_predictors: Final = by_group(_tile_predictor)

# Residual tiers ------------------------------------------------------------------------------------------------------------------

_KRIGING: Final = record(
    {
        "shape": column(limits.COUNT, whole_numbers=True),
        "sm_clock_mhz": column(limits.CLOCK_MHZ),
        "tile_area": column(limits.TILE_AREA),
        "shares": table(column(limits.SHARE), SHARES),
        "weight": column(limits.KRIGING_WEIGHT),
        "beyond_share": quantity(limits.FADING_SHARE),
    }
)
_ERRORS: Final[dict[str, Check]] = {
    "ln_error": column(limits.LN_ERROR),
    "left_out": column(limits.ABSOLUTE_LN_ERROR),
    "near": quantity(limits.QUANTILE),
    "far": quantity(limits.QUANTILE),
    "beyond": quantity(limits.ABSOLUTE_LN_ERROR),
}
_CARRIED: Final[dict[str, Check]] = {
    "reach": quantity(limits.OCTAVES),
    "beyond_share": quantity(limits.FADING_SHARE),
    "beyond_octaves": quantity(limits.OCTAVES),
    "kriging": or_null(_KRIGING),
}
_POINTS: Final[dict[str, Check]] = {
    "fields": items(one_of(ALL_FIELDS), least=1),
    "weights": column(limits.FIELD_WEIGHT),
    "points": table(column(limits.SIZE), ALL_FIELDS),
    "largest_work": quantity(limits.WORK),
}
_TREND: Final[dict[str, Check]] = {
    "slope": quantity(limits.POWER_SLOPE),
    "low_w": quantity(limits.LEVEL_W),
    "high_w": quantity(limits.LEVEL_W),
    "middle_w": quantity(limits.LEVEL_W),
}
_COMMON: Final[dict[str, Check]] = {"common": quantity(limits.LN_ERROR)}


def _named_errors(value: Any, at: str) -> FrozenMapping[Any]:
    found: FrozenMapping[Any] = record(_ERRORS, _CARRIED)(value, at)
    return found


def _power_tier(value: Any, at: str) -> FrozenMapping[Any]:
    if "points" in checks.mapping_of(value, at):
        found: FrozenMapping[Any] = record({**_POINTS, **_ERRORS}, {**_CARRIED, **_COMMON, **_TREND})(value, at)
        _check_tier(found, at)
    else:
        found = record(_COMMON, _TREND)(value, at)
    if "slope" in found:
        for name in ("low_w", "high_w", "middle_w", "common"):
            if name not in found:
                raise BundleError(f"{at} lacks the field {name!r}")
        if not found["low_w"] <= found["middle_w"] <= found["high_w"]:
            raise BundleError(f"{at}.middle_w = {found['middle_w']!r} must lie between low_w and high_w")
    return found


def _residual_tier(value: Any, at: str) -> FrozenMapping[Any]:
    found: FrozenMapping[Any] = record({**_POINTS, **_ERRORS}, {**_CARRIED, "named": or_null(_named_errors), "power": _power_tier})(
        value, at
    )
    _check_tier(found, at)
    return found


def _check_tier(tier: FrozenMapping[Any], at: str) -> None:
    """Lengths of columns, and places that they point to."""
    fields, count = tier["fields"], len(tier["ln_error"])
    if len(tier["weights"]) != len(fields):
        raise BundleError(f"{at}.weights has {len(tier['weights'])} values where {len(fields)} are needed")
    for name in fields:
        if name not in tier["points"]:
            raise BundleError(f"{at}.points lacks the field {name!r}")
    _same_length(tier["points"], list(tier["points"]), count, f"{at}.points", shared=True)
    for errors, place in ((tier, at), (tier.get("named"), f"{at}.named")):
        if errors is None:
            continue
        _same_length(errors, ["ln_error", "left_out"], count, place, shared=True)
        kriging = errors.get("kriging")
        if kriging is not None:
            _within(kriging["shape"], f"{place}.kriging.shape", count)
            known = len(kriging["shape"])
            _same_length(kriging, ["sm_clock_mhz", "tile_area", "weight"], known, f"{place}.kriging", shared=True)
            _same_length(kriging["shares"], list(kriging["shares"]), known, f"{place}.kriging.shares", shared=True)


residuals: Final = by_group(_residual_tier)

# Uncertainty and held-out errors -------------------------------------------------------------------------------------------------

_STATED: Final[dict[str, Check]] = {
    "gpu": quantity(limits.LN_STD),
    "family": quantity(limits.LN_STD),
    "families": items(text(empty=False)),
    "groups": by_group(quantity(limits.LN_STD)),
}
uncertainty: Final = record(
    {},
    {
        "latency": record({}, {**_STATED, "launch": quantity(limits.LN_STD), "families_by_group": by_group(whole())}),
        "power": record({}, {**_STATED, "launch": quantity(limits.LN_STD)}),
    },
)

_FIGURES: Final = record(
    {
        "n": whole(),
        "mape": quantity(limits.PERCENT),
        "median": quantity(limits.PERCENT),
        "p95": quantity(limits.PERCENT),
        "bias": quantity(limits.SIGNED_PERCENT),
        "coverage": or_null(quantity(limits.SHARE)),
    }
)
held_out_errors: Final = items(
    record(
        {
            "gpu": text(),
            "family": text(),
            "operator": text(),
            "precision": text(),
            "n": whole(),
            "latency": or_null(_FIGURES),
            "power": or_null(_FIGURES),
            "coverage": or_null(quantity(limits.SHARE)),
        }
    )
)

# Energies of instructions, block-count models --------------------------------------------------------------------------------------

INSTRUCTION_LIMITS: Final[dict[str, limits.Limits]] = {
    "values": limits.TERM,
    "covariance": limits.TERM_COVARIANCE,
    "reference_voltage_v": limits.VOLTAGE_V,
    "reference_clock_mhz": limits.CLOCK_MHZ,
    "temperature_c": limits.TEMPERATURE_C,
    "scatter": limits.RELATIVE,
    "rows": limits.COUNT,
    "gain_std": limits.RELATIVE,
    "epi_j": limits.ENERGY_J,
    "ept_j": limits.ENERGY_J,
    "energy_j": limits.ENERGY_J,
    "published_j": limits.ENERGY_J,
    "j_per_byte": limits.ENERGY_J,
    "std_j": limits.ENERGY_STD_J,
    "bytes": limits.TRANSACTION_BYTES,
    "pj_per_bit": limits.PJ_PER_BIT,
    "classes": limits.OCCURRENCES,
    "issued": limits.OCCURRENCES,
    "bytes_per_s": limits.LINK_RATE,
    "runs": limits.COUNT,
}
"""By the name under which numbers stand, alone, in lists and in tables; others are terms."""


def _check_instructions(section: Mapping[str, Any], at: str) -> None:
    from estimator.instructions.energies import energies_from_section  # few bundles have them

    energies_from_section(section, at)
    if "rows" in section:
        checks.count(section["rows"], f"{at}.rows")
    for name, link in section.get("links", NOTHING).items():
        checks.count(link["runs"], f"{at}.links.{name}.runs")
    for i, known in enumerate(section.get("identified", ())):
        checks.truth(known, f"{at}.identified[{i}]")
    for name, entry in section.get("ptx", NOTHING).items():
        checks.truth(entry["companions"], f"{at}.ptx.{name}.companions")
    check_covariance(section.get("covariance", ()), f"{at}.covariance")


BLOCK_LIMITS: Final[dict[str, limits.Limits]] = {
    "block_threads": limits.BLOCK_THREADS,
    "num_sms": limits.NUM_SMS,
    "blocks_per_sm": limits.BLOCKS_PER_SM,
    "sm_clock_mhz": limits.CLOCK_MHZ,
    "times_s": limits.BLOCK_TIME_S,
    "overlap": limits.OVERLAP,
    "time_covariance": limits.BLOCK_COVARIANCE,
    "energy_covariance": limits.BLOCK_COVARIANCE,
    "static_w": limits.WATT,
    "static_std_w": limits.WATT,
    "blocks": limits.GRID,
    "rows": limits.COUNT,
    "scatter": limits.RELATIVE,
    "time": limits.RELATIVE,
    "energy": limits.RELATIVE,
    "flop_per_block": limits.FLOP,
}
"""The same of block-count models."""


def _check_blocks(section: Mapping[str, Any], at: str) -> None:
    from estimator.blocks.model import FORMS, LOGARITHMS, models_from_section  # few bundles have them

    models_from_section(section, at)
    for name, model in section.items():
        items(one_of(LOGARITHMS))(model["tied"], f"{at}.{name}.tied")
        checks.refuse_unknown(model["scatter"], f"{at}.{name}.scatter", FORMS)
        for form, own in model["scatter"].items():
            checks.refuse_unknown(own, f"{at}.{name}.scatter.{form}", ("time", "energy"))
        for field in ("time_covariance", "energy_covariance"):
            if all(None not in row for row in model[field]):
                check_covariance(model[field], f"{at}.{name}.{field}")


def _read_as_used(numbers: Check, check_use: Callable[[Mapping[str, Any], str], None]) -> Check:
    """A section whose numbers pass `numbers` and which, where it holds anything, is read once as it will be used."""

    def check(value: Any, at: str) -> Any:
        section = numbers(checks.mapping_of(value, at), at)
        if section:
            check_use(section, at)
        return section

    return check


instruction_energies: Final = _read_as_used(bounded(INSTRUCTION_LIMITS, limits.TERM), _check_instructions)
block_models: Final = _read_as_used(bounded(BLOCK_LIMITS, limits.BLOCK_TERM), _check_blocks)
