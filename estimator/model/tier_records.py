"""Records of measured kernels in a bundle: their errors against the equations, at the points of their shapes."""

import bz2
from base64 import b64decode
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypedDict

from estimator.model.kriging import SHARES
from estimator.model.trees import input_count
from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.gpu import ClockMhz
from estimator.vocabulary.reader import LEAST_ONE, Count, FaultError, Pattern, Span, Words, check_known, check_lengths, read
from estimator.vocabulary.workload import FAMILY_FIELDS

Field = Annotated[str, Words(tuple(sorted({name for names in FAMILY_FIELDS.values() for name in names})))]
LnError = Annotated[float, Span(-100.0, 100.0, "logarithm of a ratio")]
AbsoluteLnError = Annotated[float, Span(0.0, 100.0, "logarithm of a ratio")]
Quantile = Annotated[float, Span(0.0, 1e6, "deviations")]
BeyondShare = Annotated[float, Span(-10.0, 10.0)]
LevelW = Annotated[float, Span(1e-3, 1e5, "W")]
Share = Annotated[float, Span(0.0, 1.0)]


class KrigingRecord(TypedDict):
    """Gaussian-process weights of a group's rows; a column of equal entries may have one entry."""

    shape: Annotated[tuple[Count, ...], LEAST_ONE, "place of each row's shape among the tier's points"]
    sm_clock_mhz: Annotated[tuple[ClockMhz, ...], LEAST_ONE, "SM clock of each row [MHz]"]
    tile_area: Annotated[tuple[Annotated[float, Span(0.0, 1e9)], ...], LEAST_ONE, "log2 of the output tile's area; 0 without tiles"]
    shares: Annotated[Mapping[Annotated[str, Words(SHARES)], tuple[Share, ...]], "share of the GPU time by phase"]
    weight: Annotated[tuple[Annotated[float, Span(-1e4, 1e4)], ...], LEAST_ONE, "weight of each row"]
    beyond_share: Annotated[BeyondShare, "share that holds for work beyond the largest measured [1]"]


class TreesRecord(TypedDict):
    """Boosted trees, their nodes in the order of `estimator.model.trees`."""

    feature: Annotated[
        tuple[Count, ...],
        LEAST_ONE,
        "input of each node, from 1: sizes, products and ratios of two, product of all, shares of phases; 0: a leaf",
    ]
    threshold: Annotated[tuple[Annotated[float, Span(-1e4, 1e4)], ...], "beyond it a kernel goes to the second child; of nodes that divide"]
    value: Annotated[tuple[LnError, ...], LEAST_ONE, "ln of the factor of each leaf"]
    beyond_share: Annotated[BeyondShare, "share that holds for work beyond the largest measured [1]"]


class ErrorRecord(TypedDict):
    """Errors of a group's points, with one source of tiles; a column of equal entries may have one entry."""

    ln_error: Annotated[tuple[LnError, ...], LEAST_ONE, "ln(measured / equations) at each point"]
    left_out: Annotated[tuple[AbsoluteLnError, ...], LEAST_ONE, "magnitude of ln(measured / prediction) of each point left out of the fit"]
    near: Annotated[Quantile, "quantile of left_out over its neighbours' mean that gives 90 % intervals near points"]
    far: Annotated[Quantile, "the same for points farther than an octave"]
    beyond: Annotated[AbsoluteLnError, "90 % half width for work beyond the largest"]
    beyond_share: NotRequired[Annotated[BeyondShare, "share of the correction that holds beyond the largest work [1]; 1 where absent"]]
    kriging: NotRequired[Annotated[KrigingRecord | None, "takes the neighbours' place for kernels whose phases are known"]]
    trees: NotRequired[Annotated[TreesRecord | None, "the same for groups of many rows"]]


class PointRecord(ErrorRecord):
    """Measured kernels of one group and their residuals of the equations."""

    fields: Annotated[tuple[Field, ...], LEAST_ONE, "shape fields that are compared"]
    weights: Annotated[tuple[Annotated[float, Span(0.0, 1e3)], ...], LEAST_ONE, "octaves of distance for one octave of each field"]
    points: Annotated[Mapping[Field, tuple[Annotated[float, Span(0.0, 1e18)], ...]], "measured shapes by field"]
    largest_work: Annotated[float, Span(0.0, 1e60), "the largest work among the points"]
    unfilled: NotRequired[Annotated[float, Span(0.0, 1e3), "octaves of distance for the empty share of a product's last tile; 0 if absent"]]


class PowerTier(PointRecord):
    """Residuals of the power equation for a group: a common factor as a line over ln(power), and errors at points."""

    common: Annotated[LnError, "factor at middle_w"]
    slope: Annotated[float, Span(-10.0, 10.0), "slope over ln(power)"]
    low_w: Annotated[LevelW, "least power of the fit"]
    middle_w: Annotated[LevelW, "mean power of the fit"]
    high_w: Annotated[LevelW, "largest power of the fit"]


def _check_power(power: Any) -> None:
    _check_points(power)
    if not power["low_w"] <= power["middle_w"] <= power["high_w"]:
        raise FaultError("must lie between low_w and high_w", "middle_w")


class TierRecord(PointRecord):
    """Errors of a group's points: with predicted tiles, with the tiles of kernel names, and of power."""

    named: NotRequired[Annotated[ErrorRecord | None, "errors with the tiles that kernel names tell; absent where these were not used"]]
    power: NotRequired[Annotated[PowerTier, _check_power, "the same for power; absent where it was not measured"]]


def _check_points(tier: Any) -> None:
    """Refuse columns of wrong length, and indices out of range; a packed tier is checked when it is used."""
    if isinstance(tier, str):
        return
    check_lengths({"weights": tier["weights"]}, len(tier["fields"]))
    check_known(tier["fields"], tier["points"], "fields")
    if tier.get("unfilled") and "m" not in tier["fields"]:
        raise FaultError("is for products, which have a field m", "unfilled")
    count = len(tier["ln_error"])
    check_lengths({f"points.{name}": column for name, column in tier["points"].items()}, count, shared=True)
    for errors in (tier, tier.get("named")):
        if errors is None:
            continue
        check_lengths({"ln_error": errors["ln_error"], "left_out": errors["left_out"]}, count, shared=True)
        kriging = errors.get("kriging")
        if kriging is not None:
            columns = {"sm_clock_mhz": kriging["sm_clock_mhz"], "tile_area": kriging["tile_area"], "weight": kriging["weight"]}
            check_lengths(columns | dict(kriging["shares"]), len(kriging["shape"]), shared=True)
            if max(kriging["shape"]) >= count:
                raise FaultError(f"points to none of the {count} points", "kriging", "shape")
        trees = errors.get("trees")
        if trees is not None:
            divides = sum(map(bool, trees["feature"]))
            check_lengths({"trees.threshold": trees["threshold"]}, divides)
            check_lengths({"trees.value": trees["value"]}, len(trees["feature"]) - divides)
            if len(trees["value"]) <= divides:
                raise FaultError("names more children than there are nodes", "trees", "feature")
            if max(trees["feature"]) > input_count(len(tier["fields"]) + 2 * bool(tier.get("unfilled"))):
                raise FaultError("asks for an input that kernels lack", "trees", "feature")


PackedText = Annotated[str, Pattern(r"[A-Za-z0-9+/]+=*", "like base64"), "base64 of bzip2 of the JSON of a tier"]

if TYPE_CHECKING:
    Tier = Any
else:
    Tier = Annotated[TierRecord | PackedText, _check_points]

MOST_UNPACKED: Final = 1 << 26
"""Largest JSON of a packed tier [byte]: far more than 100,000 points."""


class PackedTier(Mapping[str, Any]):
    """A tier as the text that packs it, which is read when it is first used."""

    def __init__(self, packed: str) -> None:
        self.packed = packed

    @cached_property
    def tier(self) -> Mapping[str, Any]:
        """The tier.  Raises BundleError if the text packs none."""
        try:
            found: Mapping[str, Any] | str = read(Tier, parse_json(bz2.BZ2Decompressor().decompress(b64decode(self.packed), MOST_UNPACKED)))
            if isinstance(found, str):
                raise ValueError("it holds another packed one")
        except (ValueError, OSError) as error:
            raise BundleError(f"the bundle's residuals hold a packed tier that cannot be read ({error}); fit again") from error
        return found

    def __getitem__(self, name: str) -> Any:
        return self.tier[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tier)

    def __len__(self) -> int:
        return len(self.tier)

    __hash__ = object.__hash__
