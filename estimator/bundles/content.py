"""What a bundle holds: the calibration of one GPU, frozen to the last value.

`estimator.bundles.files` reads and writes it, `estimator.bundles.document` checks it; the field by field description of
the file is `schema/bundle-1.json`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from estimator.coefficients import CoefficientTable, coefficient_table, longest_prefix
from estimator.frozen import FrozenMapping
from estimator.gpu import ClockTable, GpuSpec
from estimator.timeline import LAUNCH_OVERLAP_EXPONENT

T = TypeVar("T")

EMPTY: Final[FrozenMapping[Any]] = FrozenMapping({})

Numbers = tuple[float, ...]
Matrix = tuple[Numbers, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCoefficients:
    """Latency coefficients of one kernel group.

    coefficients  value by name of `estimator.coefficients.COEFFICIENTS`, each with the unit given there
    ln_std        standard deviation of the natural logarithm, by name; names without one were not fitted
    identified    whether the data, rather than the prior, set the coefficient, by name
    rows          measurements behind the group
    """

    coefficients: Mapping[str, float]
    ln_std: Mapping[str, float] = EMPTY
    identified: Mapping[str, bool] = EMPTY
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Covariance:
    """Covariance of the logarithms of fitted parameters: `names` and a symmetric matrix of the same length [1]."""

    names: tuple[str, ...] = ()
    covariance: Matrix = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCost:
    """What the host spends to launch one framework operator [s], its standard deviation in logarithms (nan: unknown), its origin.

    overlap_exponent: how sharply its launches and the GPU's time take turns, see `estimator.timeline.workload_seconds` [1].
    """

    launch_s: float
    launch_ln_std: float
    source: str
    overlap_exponent: float = LAUNCH_OVERLAP_EXPONENT


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCoefficients:
    """The power equation's coefficients, see `estimator.power`.

    capacitance_f, capacitance_std_f   switched capacitance of each term and its standard deviation [F]
    event_energy_j                     energy of one event of each term at the reference voltage [J]
    busy_w, active_w                   power of running SMs and of a board in use, with standard deviations, nan where unknown [W]
    terms, covariance                  names and covariance matrix of the fitted terms, in the terms' own units
    l2_credit                          share of L2 in which a result waits for the next kernel [1]
    warm_knee, warm_sharpness          edge beyond which operands of a repeated kernel fall out of L2, see `warm_dram_share`
    leakage_w_per_k, leakage_std_w_per_k   leakage for each kelvin above the board at rest, 0 where not measured [W/K]
    operating_c, operating_k_per_w     temperature of a working board: operating_c + operating_k_per_w · power [°C], [K/W]
    """

    reference_clock_mhz: float
    reference_voltage_v: float
    voltage_exponent: float
    concavity: float
    capacitance_f: Mapping[str, float]
    capacitance_std_f: Mapping[str, float]
    event_energy_j: Mapping[str, float]
    busy_w: float
    busy_std_w: float
    active_w: float
    active_std_w: float
    terms: tuple[str, ...]
    covariance: Matrix
    l2_credit: float
    rows: int
    warm_knee: float = 0.8
    warm_sharpness: float = 4.0
    leakage_w_per_k: float = 0.0
    leakage_std_w_per_k: float = 0.0
    operating_c: float = 0.0
    operating_k_per_w: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VoltageTable:
    """Core voltage over the SM clock; `std_v` is None where unknown."""

    sm_clock_mhz: Numbers
    voltage_v: Numbers
    std_v: Numbers | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTable:
    """Power at rest over the SM clock, its standard deviation and the temperature at which it was read, None where unknown."""

    sm_clock_mhz: Numbers
    power_w: Numbers
    std_w: float | None
    source: str
    temperature_c: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRecord:
    """A dataset behind a bundle: its digest, kind, rows, rows used, and how many were rejected for which reason."""

    name: str
    sha256: str
    kind: str
    rows: int
    used: int
    rejected: Mapping[str, int] = EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a bundle came from.  Times are wall time, for people."""

    created_utc: str
    wattprint_version: str
    commit: str
    seed: int
    datasets: tuple[DatasetRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bundle:
    """The calibration of one GPU.

    groups            latency coefficients by dotted group key; look up with `group`
    tile_predictors   per group, a decision tree as plain arrays
    residuals         per group, calibrated points and their remaining error
    uncertainty       parameters of the intervals, under "latency" and "power"
    domain            per group, the range of every field that the fit has seen
    clocks_mhz        range of SM clocks that the fit has seen [MHz]
    errors            held-out errors, one mapping a row
    digest            "sha256:…" of the file's content; empty until the bundle is saved
    """

    name: str
    version: str
    gpu: GpuSpec
    provenance: Provenance
    host: HostCost
    groups: Mapping[str, GroupCoefficients]
    clocks_mhz: tuple[float, float]
    gpu_uuid: str = ""
    environment: Mapping[str, str] = EMPTY
    sensor: Mapping[str, Any] | None = None
    completion: str = ""
    latency_parameters: Covariance = field(default_factory=Covariance)
    power: PowerCoefficients | None = None
    voltage: VoltageTable | None = None
    idle: IdleTable | None = None
    tile_predictors: Mapping[str, Any] = EMPTY
    residuals: Mapping[str, Any] = EMPTY
    uncertainty: Mapping[str, Any] = EMPTY
    domain: Mapping[str, Mapping[str, tuple[float, float]]] = EMPTY
    errors: tuple[Mapping[str, Any], ...] = ()
    instruction_energies: Mapping[str, Any] = EMPTY
    block_models: Mapping[str, Any] = EMPTY
    notes: tuple[str, ...] = ()
    digest: str = ""
    _found: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        kinds = f"{len(self.groups)} {'group' if len(self.groups) == 1 else 'groups'} of kernels"
        return f"<Bundle {self.name!r} {self.version} of {self.gpu.name!r}, {kinds}{', simulated' if self.simulated else ''}>"

    def once(self, work: Callable[["Bundle"], T]) -> T:
        """What a function of a module finds in this bundle: worked out when it is first asked for, as a bundle never changes.

        What is found is given out again and again: it must not be changed either.
        """
        if work not in self._found:
            self._found[work] = work(self)
        found: T = self._found[work]
        return found

    def __reduce__(self) -> tuple[Callable[..., "Bundle"], tuple[dict[str, Any]]]:
        return _bundle, ({one.name: getattr(self, one.name) for one in fields(self) if one.init},)  # without what was worked out

    @property
    def simulated(self) -> bool:
        """Whether a simulated board was measured: such numbers test the program, they say nothing about a GPU."""
        return self.environment.get("simulated") == "true"

    def group(self, key: str) -> GroupCoefficients | None:
        """Coefficients of the longest dotted prefix of `key` that the bundle knows, or None."""
        name = longest_prefix(key, self.groups.keys())
        return None if name is None else self.groups[name]


def _bundle(content: dict[str, Any]) -> Bundle:
    return Bundle(**content)


def group_table(bundle: Bundle) -> CoefficientTable:
    """Coefficients of the bundle's groups, ready to be looked up; ask for them by `Bundle.once`."""
    return coefficient_table({name: group.coefficients for name, group in bundle.groups.items()})


def measured_tables(bundle: Bundle) -> tuple[ClockTable | None, ClockTable | None]:
    """Voltage [V] and idle power [W] of the bundle's own board, None where they were not measured; ask for them by `Bundle.once`."""
    volt, idle = bundle.voltage, bundle.idle
    return (
        None if volt is None else ClockTable(sm_clock_mhz=volt.sm_clock_mhz, value=volt.voltage_v, source=volt.source),
        None if idle is None else ClockTable(sm_clock_mhz=idle.sm_clock_mhz, value=idle.power_w, source=idle.source),
    )
