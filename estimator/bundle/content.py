"""Content of a bundle: the calibration of one GPU, each field declared once, deeply immutable.

`estimator.bundle.files` reads and writes it; `schema/bundle-1.json` is made from these declarations.  Limits are wide enough for any
board and narrow enough for meaningful results: no measurement or fit gives a number beyond them.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired, TypedDict, TypeVar

from estimator.blocks.model import BlockModel
from estimator.counts.energies import Section
from estimator.model.coefficients import (
    BY,
    COEFFICIENTS,
    FRAMEWORK,
    MEANING,
    TIED_COEFFICIENTS,
    CoefficientTable,
    group_words,
    longest_prefix,
)
from estimator.model.power import POWER_TERMS, tensor_rate
from estimator.model.power_limit import LIMIT_SHARE, LIMIT_SHARE_STD
from estimator.model.silicon import FLOP_PER_CLOCK
from estimator.model.tier_records import Field, Share, Tier
from estimator.model.tile_choice import PredictorRecord
from estimator.model.timeline import LAUNCH_OVERLAP_EXPONENT
from estimator.vocabulary.frozen import EMPTY
from estimator.vocabulary.gpu import ClockMhz, ClockTable, GpuSpec, IdleWatt, Volt, check_values
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.reader import (
    LEAST_ONE,
    Count,
    FaultError,
    Pattern,
    Span,
    Text,
    Words,
    check_covariance,
    check_known,
    check_lengths,
)
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import FAMILY_FIELDS, FAMILY_OPERATORS, FLASH_ATTENTION, LIBRARIES

T = TypeVar("T")

FORMAT: Final = "wattprint-bundle"
FORMAT_VERSION: Final = "1.0"
SEMANTIC_VERSION: Final = r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?"


@lru_cache(1024)  # several sections of a bundle name the same groups
def check_group(name: str) -> None:
    """Refuse the name of a kernel group with an unknown family, operator or precision."""
    family, *rest = group_words(name)
    libraries = (*LIBRARIES, FRAMEWORK, FLASH_ATTENTION)
    if BY in name and name.partition(BY)[2] not in libraries:
        raise FaultError(f"= {name[:60]!r} names no library after {BY}: none of {', '.join(libraries)}")
    words: Iterable[tuple[str, Collection[str]]] = zip(
        (family, *rest),
        (FAMILY_FIELDS, FAMILY_OPERATORS.get(family, ()), *([BYTES_PER_ELEMENT] if family != "communication" else [])),
        strict=False,
    )
    for word, known in words:
        if word not in known:
            raise FaultError(f"= {name[:60]!r} names no group of kernels: {word[:20]!r} is none of {', '.join(known)}")


def check_printable(name: str) -> None:
    """Refuse a name that cannot be printed in a table."""
    if not name.isprintable():
        raise FaultError("holds a character that cannot be printed")


def check_range(ends: tuple[float, float]) -> None:
    """Refuse a range whose ends are not in order."""
    if ends[0] > ends[1]:
        raise FaultError(f"= {list(ends)} must ascend")


GroupName = Annotated[str, check_group]
Coefficient = Annotated[str, Words(COEFFICIENTS)]
PowerTerm = Annotated[str, Words(POWER_TERMS)]
Watt = Annotated[float, Span(0.0, 1e5, "W")]
UnknownWatt = Annotated[float, Span(0.0, 1e5, "W", nan=True)]
Celsius = Annotated[float, Span(-60.0, 200.0, "°C")]
LnStd = Annotated[float, Span(0.0, 100.0, "deviation of a logarithm")]
Percent = Annotated[float, Span(0.0, 1e12, "%")]
Farads = Mapping[PowerTerm, Annotated[float, Span(0.0, 1e-2, "F")]]
OVERLAP_EXPONENT: Final = Span(1.0, 256.0)

_TIMES = Span(0.0, 1e6, "times its ideal")
_LIMITS: Final = {
    "epsilon_s": Span(0.0, 10.0, "s"),
    "floor_s": Span(0.0, 10.0, "s"),
    "offset_s": Span(0.0, 10.0, "s"),
    "exponent": Span(0.1, 64.0),
    "wave_exponent": Span(0.0, 10.0),
    "small_tile_exponent": Span(0.0, 10.0),
    "strided": Span(1e-3, 1e6, "times"),
    "widest_split": Span(0.0, 65536.0),
    "l2_knee": Span(0.0, 1e3, "L2 sizes"),
    "l2_knee_exponent": Span(0.0, 64.0),
}
"""Limits of coefficients other than the lambdas of phases; exponents far beyond the bounds of a fit overflow floats."""

if TYPE_CHECKING:
    Coefficients = Mapping[str, float]
else:
    Coefficients = TypedDict(
        "Coefficients", {name: Annotated[float, _LIMITS.get(name, _TIMES), MEANING[name]] for name in COEFFICIENTS}, total=False
    )


@frozen
class GroupCoefficients:
    """Latency coefficients of one kernel group."""

    coefficients: Annotated[Coefficients, LEAST_ONE, "value by name, each with its own unit"]
    ln_std: Annotated[Mapping[Coefficient, LnStd], "standard deviation of the logarithm; names without one were not fitted"] = EMPTY
    identified: Annotated[Mapping[Coefficient, bool], "whether the data, rather than the prior, set the coefficient"] = EMPTY
    rows: Annotated[Count, "measurements behind the group"] = 0
    usual: Annotated[Coefficients, "lambdas of boards in general, here and in groups below; forecasts for other kinds of SM take half"] = (
        EMPTY
    )


def check_group_names(group: GroupCoefficients) -> None:
    """Refuse standard deviations for coefficients that a group does not have."""
    check_known(group.ln_std, group.coefficients, "ln_std")
    check_known(group.identified, group.coefficients, "identified")


@frozen
class Covariance:
    """Covariance of the logarithms of fitted parameters."""

    names: Annotated[tuple[Text, ...], "GROUP.COEFFICIENT, or a parameter that serves several groups"] = ()
    covariance: Annotated[
        tuple[tuple[Annotated[float, Span(-1e4, 1e4)], ...], ...], "symmetric, as many rows and columns as names [1]"
    ] = ()


def check_parameters(found: Covariance) -> None:
    """Refuse parameters that are not coefficients, and matrices that are not their covariance."""
    for i, name in enumerate(found.names):
        group, _, coefficient = name.rpartition(".")
        if name not in TIED_COEFFICIENTS and (not group or coefficient not in COEFFICIENTS):
            raise FaultError(f"= {name[:60]!r} is neither GROUP.COEFFICIENT nor one of {', '.join(TIED_COEFFICIENTS)}", "names", i)
    check_lengths({"covariance": found.covariance}, len(found.names))
    check_covariance(found.covariance, "covariance")


@frozen
class HostCost:
    """The host on which the measurements ran."""

    launch_s: Annotated[float, Span(0.0, 1.0, "s"), "host time to launch one framework operator"]
    launch_ln_std: Annotated[float, Span(0.0, 100.0, nan=True), "standard deviation of its natural logarithm; null where unknown"]
    source: Annotated[str, "where it comes from"]
    overlap_exponent: Annotated[float, OVERLAP_EXPONENT, "p of the maximum of GPU time and launch time, (G^p + L^p)^(1/p)"] = (
        LAUNCH_OVERLAP_EXPONENT
    )


@frozen
class PowerCoefficients:
    """Coefficients of the power equation, see `estimator.model.power`."""

    reference_clock_mhz: Annotated[ClockMhz, "SM clock at which busy_w holds"]
    reference_voltage_v: Annotated[Volt, "core voltage at which the energies hold"]
    voltage_exponent: Annotated[float, Span(0.0, 10.0), "n of (V/V0)^n"]
    capacitance_f: Annotated[Farads, "switched capacitance by term"]
    capacitance_std_f: Annotated[Farads, "its standard deviation"]
    event_energy_j: Annotated[Mapping[PowerTerm, Annotated[float, Span(0.0, 1e-8, "J per event")]], "at the reference voltage"]
    busy_w: Annotated[Watt, "power of running SMs"]
    busy_std_w: Annotated[UnknownWatt, "its standard deviation; null where unknown"]
    active_w: Annotated[Watt, "power of a board in use beyond idle"]
    active_std_w: Annotated[UnknownWatt, "its standard deviation; null where unknown"]
    terms: Annotated[tuple[Annotated[str, Words((*POWER_TERMS, "busy", "active"))], ...], "fitted terms"]
    covariance: Annotated[
        tuple[tuple[Annotated[float, Span(-1e12, 1e12)], ...], ...], "covariance of the fitted terms in their own units, pJ or W"
    ]
    rows: Annotated[Count, "measurements behind the fit"]
    leakage_w_per_k: Annotated[float, Span(0.0, 100.0, "W/K"), "leakage above the board at rest, of fits by 0.1; else 0"] = 0.0
    leakage_std_w_per_k: Annotated[float, Span(0.0, 100.0, "W/K"), "its standard deviation"] = 0.0
    rest_c: Annotated[Celsius, "temperature of the board at rest"] = 0.0
    operating_c: Annotated[Celsius, "temperature of a working board, without its power"] = 0.0
    operating_k_per_w: Annotated[float, Span(0.0, 100.0, "K/W"), "what each watt adds to it"] = 0.0
    limit_share: Annotated[float, Span(0.5, 1.1), "share of its limit that the throttled board draws on average"] = LIMIT_SHARE
    limit_share_std: Annotated[float, Span(0.0, 0.5), "its standard deviation"] = LIMIT_SHARE_STD


def check_power(power: PowerCoefficients) -> None:
    """Refuse a matrix that is not a covariance of the terms."""
    check_lengths({"covariance": power.covariance}, len(power.terms))
    check_covariance(power.covariance, "covariance")


@frozen
class DatasetRecord:
    """A dataset behind a bundle."""

    name: Annotated[Text, "name of the file"]
    sha256: Annotated[Text, "digest of its content"]
    kind: Annotated[Text, "kind of dataset"]
    rows: Annotated[Count, "rows in it"]
    used: Annotated[Count, "rows used"]
    rejected: Annotated[Mapping[str, Count], "rows rejected, by reason"] = EMPTY


@frozen
class Provenance:
    """Origin of a bundle.  Times are wall time, for people."""

    created_utc: Annotated[Text, "when the bundle was fitted, UTC, ISO 8601"]
    wattprint_version: Annotated[Text, "program that fitted it"]
    commit: Annotated[str, "source revision of that program; empty where unknown"]
    seed: Annotated[int, Span(0, 2**128), "seed of every random choice"]
    datasets: Annotated[tuple[DatasetRecord, ...], "what was fitted"] = ()


@frozen
class CollectionRecord:
    """A collection (laboratory) behind a bundle, and its scale on the times of all kernels of the board."""

    name: Annotated[Text, check_printable, "name of the collection"]
    rows: Annotated[Count, "rows used"]
    scale: Annotated[float, Span(0.1, 10.0, "times"), "its kernel times over those by the coefficients"] = 1.0
    ln_std: Annotated[LnStd, "standard deviation of the scale's logarithm; 0 for the only collection"] = 0.0


def check_collections(found: tuple[CollectionRecord, ...]) -> None:
    """Refuse two collections of one name."""
    names = [one.name for one in found]
    twice = next((i for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise FaultError(f"= {names[twice][:60]!r} names a second collection so", twice, "name")


class StatedErrors(TypedDict):
    """Standard deviations of the logarithm of one quantity, from rows left out of fits."""

    gpu: NotRequired[Annotated[LnStd, "over GPU-bound runs of whole workloads"]]
    launch: NotRequired[Annotated[LnStd, "over runs that the host's launches bound"]]
    family: NotRequired[Annotated[LnStd, "what a model family shares that was not fitted"]]
    families: NotRequired[Annotated[tuple[Text, ...], "model families that the fit has seen"]]
    groups: NotRequired[Annotated[Mapping[GroupName, LnStd], "for kernels of a group"]]
    families_by_group: NotRequired[Annotated[Mapping[GroupName, Count], "model families that used each group notably"]]


class Uncertainty(TypedDict):
    """Parameters of the prediction intervals."""

    latency: NotRequired[Annotated[StatedErrors, "of ln(latency)"]]
    power: NotRequired[Annotated[StatedErrors, "of ln(power)"]]


class ErrorFigures(TypedDict):
    """Errors of one quantity over held-out rows."""

    n: Annotated[Count, "rows compared"]
    mape: Annotated[Percent, "mean magnitude"]
    median: Annotated[Percent, "median magnitude"]
    p95: Annotated[Percent, "95th percentile of the magnitude"]
    bias: Annotated[float, Span(-1e12, 1e12, "%"), "mean signed error"]
    coverage: Annotated[Share | None, "share inside the stated 90 % intervals; null where none is stated"]


class HeldOut(TypedDict):
    """Errors on held-out rows of one kind."""

    gpu: Annotated[str, "name of the GPU"]
    family: Annotated[str, "kernel family"]
    operator: Annotated[str, "operator"]
    precision: Annotated[str, "number format"]
    n: Annotated[Count, "rows"]
    latency: Annotated[ErrorFigures | None, "of latency; null without it"]
    power: Annotated[ErrorFigures | None, "of power; null without it"]
    coverage: Annotated[Share | None, "share of latencies inside the stated 90 % intervals"]


if TYPE_CHECKING:
    Stated = Mapping[str, Any]
else:
    Stated = Uncertainty

Ranges = Mapping[Field, Annotated[tuple[Annotated[float, Span(0.0, 1e18)], Annotated[float, Span(0.0, 1e18)]], check_range]]


@frozen
class Content:
    """The fields that a bundle has both in memory and in its file."""

    name: Annotated[Text, check_printable, "name of the bundle"]
    version: Annotated[str, Pattern(SEMANTIC_VERSION, "MAJOR.MINOR.PATCH"), "semantic version of the calibration"]
    digest: Annotated[str, "SHA-256 of the content, see docs/bundle-format.md"] = ""
    environment: Annotated[
        Mapping[str, str], 'what the measurements depended on: driver, libraries, host; "simulated": "true" without a real GPU'
    ] = EMPTY
    sensor: Annotated[Mapping[str, object] | None, "characterisation of the power sensor"] = None
    provenance: Annotated[Provenance, "where the bundle came from"]
    collections: Annotated[tuple[CollectionRecord, ...], check_collections, "laboratories that measured the rows"] = ()
    host: Annotated[HostCost, "the host that measured"]
    completion: Annotated[str, "names of the rule sets that completed operator lists in the fit; empty for none"] = ""
    groups: Annotated[
        Mapping[GroupName, Annotated[GroupCoefficients, check_group_names]],
        "latency coefficients by kernel group, a dotted path; a kernel takes the longest known prefix of its own path",
    ]
    latency_parameters: Annotated[Covariance, check_parameters, "covariance of the logarithms of the fitted parameters"] = Covariance()
    power: Annotated[Annotated[PowerCoefficients, check_power] | None, "coefficients of power; null where nothing measured it"] = None
    voltage: Annotated[ClockTable | None, check_values(Volt), "core voltage over the SM clock"] = None
    idle: Annotated[ClockTable | None, check_values(IdleWatt), "power at rest over the SM clock"] = None
    tile_predictors: Annotated[Mapping[GroupName, PredictorRecord], "by kernel group, which tile a library takes"] = EMPTY
    residuals: Annotated[Mapping[GroupName, Tier], "by kernel group, measured points and their remaining error"] = EMPTY
    uncertainty: Annotated[Stated, "parameters of the prediction intervals, from rows left out of fits"] = EMPTY
    domain: Annotated[Mapping[GroupName, Ranges], "range of every shape field that the fit has seen, by kernel group"] = EMPTY
    errors: Annotated[tuple[HeldOut, ...], "errors on held-out data"] = ()
    instruction_energies: Annotated[Section, "energy per instruction, transaction and byte across a link"] = EMPTY
    block_models: Annotated[Mapping[str, BlockModel], "time and energy from the number of blocks, by kernel/threads@clock"] = EMPTY
    notes: Annotated[tuple[Text, ...], "remarks for the reader"] = ()


@frozen
class BoardRecord:
    """The GPU that was measured."""

    name: Annotated[Text, "name of the GPU, as in its specification"]
    uuid: Annotated[str, "UUID of the board; empty where unknown"]
    specification: Annotated[GpuSpec, "the GPU's specification"]


@frozen
class BundleFile(Content):
    """A bundle: the calibration of one GPU."""

    format: Annotated[Literal["wattprint-bundle"], "tells a bundle from other files"]
    format_version: Annotated[Literal["1.0"], "version of this format; a program refuses a newer one"]
    gpu: Annotated[BoardRecord, "the GPU that was measured"]
    clocks: Annotated[tuple[ClockMhz, ClockMhz], check_range, "lowest and highest SM clock that the fit has seen [MHz]"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bundle(Content):
    """The calibration of one GPU; `clocks_mhz` is the range of SM clocks that the fit has seen [MHz]."""

    gpu: GpuSpec
    gpu_uuid: str = ""
    clocks_mhz: tuple[float, float]
    _found: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<Bundle {self.name!r} {self.version} of {self.gpu.name!r}{', simulated' if self.simulated else ''}>"

    def once(self, work: Callable[..., T], *given: Hashable) -> T:
        """The cached result of a module's function of this bundle and what is given, computed on first use.

        All callers share the result: it must not be changed.
        """
        key = (work, *given)
        if key not in self._found:
            self._found[key] = work(self, *given)
        found: T = self._found[key]
        return found

    @property
    def simulated(self) -> bool:
        """Whether a simulated board was measured: such numbers test the program and do not describe a GPU."""
        return self.environment.get("simulated") == "true"


SLOWER_EXPONENT: Final = 2.6
"""Exponent with which the times of tensor cores and of what delays them join, as phases of products do inside whole models
(`fitter.priors`).  Published products of six boards whose cores have half the rate of those of the fitted A10 and L40S err by 7 instead of
23 % with it, by 12 with an exponent of 1 (`benchmarks/published.py`)."""


CUDA_CORES: Final[dict[str, float]] = {
    "math": 1.13, "l2": 1.0, "dram": 1.01, "dram_activations": 1.08, "loop": 0.48, "prologue": 0.52, "epilogue": 0.35, "reduce": 0.76,
    "reduce_launch": 5.2, "exponent": 2.9, "wave_exponent": 0.69, "small_tile_exponent": 0.064, "epsilon_s": 2.7e-6, "waves": 0.48,
    "store": 0.46, "l2_knee": 0.75,
}  # fmt: skip
"""Coefficients of products in fp32 on CUDA cores for bundles without such rows: means of the fits of A100, V100 and H200.  With those of
tensor cores 31 published figures of cuBLAS err by 11.8 instead of 10.1 %, and a board of faster tensor cores takes longer."""


def group_table(bundle: Bundle, gpu: GpuSpec) -> CoefficientTable:
    """Coefficients of the bundle's groups on a GPU, ready for lookup; call through `Bundle.once`."""
    return CoefficientTable(group_coefficients(bundle, gpu))


def same_kernels(bundle: Bundle, gpu: GpuSpec) -> bool:
    """Whether libraries launch the same kernels on a GPU as on the fitted one: those of its compute capability (assumed).

    10.0 and 10.3 are of one family, for which kernels are compiled together (CUDA C++ Programming Guide, family-specific features).
    """
    return gpu.compute_capability.replace("10.3", "10.0") == bundle.gpu.compute_capability.replace("10.3", "10.0")


def group_coefficients(bundle: Bundle, gpu: GpuSpec) -> dict[str, dict[str, float]]:
    """Coefficients by group on a GPU.

    Where kernels are others (`same_kernels`) half of a lambda's deviation from its usual value belongs to the fitted board: forecasts of
    runs of 20 ms and more between A100, A10 and H100 then err by 3.7 instead of 4.4 % in latency (`benchmarks/board_power.py`).

    Where boards are sold with less than their tensor cores' rate, what delays cores of the whole rate takes as many clocks: a pipeline's
    filling, counted in steps of the cores, and what the slower ones mostly hide (SLOWER_EXPONENT); their power, and so a ceiling, falls
    with their rate (an H20's products err by 7 instead of 15 %, `benchmarks/published.py`). Between kinds of SM this does not hold of
    other rates: whole models from an H100 to an A100 and an A10 would err by 7.7 and 6.9 instead of 5.5 and 3.2 %
    (`benchmarks/board_power.py`).

    Bytes take no less than the published bandwidth allows on another board: a dram below 1 is of bytes that the fitted one's caches or
    other phases hide (those of experts are expected values by their routing; their math has the bound instead, since an H20's passed the
    published rate).  Whole models from an A100 to an A10 then err by 3.3 instead of 3.7 % in latency and 4.2 instead of 4.8 in power, int4
    models on an RTX A6000 by 2 instead of 14 %, where products took less time than their bytes (`benchmarks/published.py`).
    """
    known = {name: group.usual for name, group in bundle.groups.items() if group.usual and not same_kernels(bundle, gpu)}
    now, then = (tensor_rate(one) / FLOP_PER_CLOCK.get(one.compute_capability, tensor_rate(one)) for one in (gpu, bundle.gpu))
    slower = min(now / then, 1.0)
    found = {}
    for name, group in bundle.groups.items():
        usual = known.get(longest_prefix(name, known) or "", EMPTY)
        own = {key: math.sqrt(value * usual.get(key, value)) for key, value in group.coefficients.items()}
        if slower < 1.0 < own.get("math", 0.0) and "fp32" not in name:
            excess = own["math"] ** SLOWER_EXPONENT - 1.0
            own["math"] = (1.0 + excess * slower**SLOWER_EXPONENT) ** (1.0 / SLOWER_EXPONENT)
        for key in own.keys() & {"prologue", "ceiling"} if "fp32" not in name else ():
            own[key] *= slower
        if gpu.name != bundle.gpu.name and "dram" in own:
            bound = "math" if name.startswith("moe") else "dram"
            own[bound] = max(own[bound], 1.0)
        found[name] = own
    lacking = (one for one in ("gemm.linear.fp32.cuda", "gemm.bmm.fp32.cuda") if "fp32" not in (longest_prefix(one, found) or ""))
    return found | dict.fromkeys(lacking, CUDA_CORES)
