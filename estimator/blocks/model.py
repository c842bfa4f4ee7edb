"""Time and energy of a kernel from its number of blocks, in three forms.

    linear      T = a NB + b                                    E = E_b NB + P_s T
    rounds      T = a S ceil(NB / S)                            E = (E_b S + P_s a S) ceil(NB / S)
    occupancy   T = t_0 + q R(k) + [r > 0] R(ceil(r / S))      R(j) = (t_1^p + (j t_b)^p)^(1/p)
                E = E_b NB + (P_s + P_a) T

S is the number of SMs, k how many blocks fit on one at once, q and r the quotient and the rest of NB / (S k).  A round of j blocks an SM
takes the longer of two times: one block alone, t_1 (latency), or j times the time that each block adds to a full SM, t_b (throughput).
The norm p sets how sharp the bend is.  t_0 is the launch.  P_s is the board's power at rest, P_a its additional power while anything runs.
Source: the first two forms, Boughzala, Lefèvre, Orgerie, "Predicting the energy consumption of CUDA kernels using SimGrid" (SBAC-PAD
2020), eq. 1 to 7.  The third is ours: the published one assumes a single resident block, ignores the launch, and uses the static power of
a working board as power at rest.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Final, Literal, get_args

import numpy as np

from estimator.vocabulary.documents import Document
from estimator.vocabulary.errors import BundleError, EstimatorError
from estimator.vocabulary.frozen import EMPTY
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.reader import WHEN_GIVEN, Count, FaultError, Shape, Span, Words, check_covariance, plain, read
from estimator.vocabulary.values import frozen

Form = Literal["occupancy", "rounds", "linear"]
FORMS: Final[tuple[Form, ...]] = get_args(Form)

TIMES: Final = ("start_s", "lone_s", "share_s")
"""Time coefficients of the form "occupancy": t_0, t_1, t_b."""

LOGARITHMS: Final = (*TIMES, "overlap")
"""Parameters of the covariance of times: natural logarithms of the times and of p."""

ENERGIES: Final = ("block_j", "awake_w")
"""Energy coefficients of the form "occupancy": E_b, P_a."""

MOST_BLOCKS: Final = 2**31 - 1
"""Largest grid along x (CUDA programming guide, technical specifications)."""


Term = Annotated[float, Span(-1e6, 1e6, nan=True)]
Covariance = Span(-1e12, 1e12, nan=True)
Watt = Annotated[float, Span(0.0, 1e5, "W", nan=True)]
Grid = Annotated[int, Span(1, MOST_BLOCKS, "blocks")]
Quantity = Annotated[str, Words(("time", "energy"))]
Relative = Annotated[float, Span(0.0, 1e3, nan=True)]
Scatter = Mapping[Quantity, Relative]


@frozen
class RelativeErrors:
    """Worst, best and average of |predicted − measured| / measured: the errors of Boughzala et al., section VI.A."""

    wre: Annotated[Relative, "worst"]
    bre: Annotated[Relative, "best"]
    are: Annotated[Relative, "average"]


@frozen
class BlockModel:
    """One kernel with one block size on one GPU at one clock; values not measured are nan, in a bundle null."""

    kernel: Annotated[str, "name of the kernel"]
    block_threads: Annotated[int, Span(1, 1024, "threads"), "size of a block"]
    num_sms: Annotated[int, Span(1, 1024), "SMs of the GPU, S"]
    blocks_per_sm: Annotated[int, Span(1, 1024), "blocks that fit on an SM at once, k"]
    sm_clock_mhz: Annotated[float, Span(10, 10_000, "MHz", nan=True), "SM clock"]
    times_s: Annotated[Array, Shape((3,)), Span(math.ulp(0.0), 1e6), "t_0, t_1, t_b [s]"]
    overlap: Annotated[float, Span(1e-6, 1e6), "p, which joins latency and throughput [1]"]
    time_covariance: Annotated[Array, Shape((4, 4)), Covariance, "of the logarithms of these four [1]"]
    energies: Annotated[Array, Shape((2,)), Span(-1e6, 1e6, nan=True), "E_b [J], P_a [W]; null where no power was measured"]
    energy_covariance: Annotated[Array, Shape((2, 2)), Covariance, "of these two"]
    static_w: Annotated[Watt, "P_s"]
    static_std_w: Annotated[Watt, "its standard deviation"]
    slope_s: Annotated[Term, "a of the published forms [s]: ordinary least squares over the same grids"]
    intercept_s: Annotated[Term, "b of them [s]"]
    slope_j: Annotated[Term, "E_b of them [J]"]
    blocks: Annotated[tuple[Grid, Grid], "smallest and largest measured grid"]
    rows: Annotated[Count, "runs behind the fit"]
    scatter: Annotated[
        Mapping[Annotated[str, Words(FORMS)], Scatter],
        "by form, rms relative error of each inner grid left out in turn, of grids of two rounds or more where there are some",
    ]
    tied: Annotated[tuple[Annotated[str, Words(LOGARITHMS)], ...], "parameters that the prior set, not the grids"] = ()
    flop_per_block: Annotated[float, Span(0.0, 1e30, "flop", nan=True), "work of a block; null where unknown"] = math.nan
    relative_errors: Annotated[
        Mapping[Annotated[str, Words(FORMS)], Mapping[Quantity, RelativeErrors]], "by form, of the grids behind `scatter`"
    ] = field(default=EMPTY, metadata=WHEN_GIVEN)

    def __post_init__(self) -> None:
        for name in ("time_covariance", "energy_covariance"):
            if np.isfinite(getattr(self, name)).all():
                check_covariance(getattr(self, name), name)

    @property
    def resident_blocks(self) -> int:
        """Blocks that the whole GPU holds at once."""
        return self.num_sms * self.blocks_per_sm

    @property
    def has_power(self) -> bool:
        """Whether energy was measured."""
        return bool(np.all(np.isfinite(self.energies)) and math.isfinite(self.static_w))

    def latency_s(self, blocks: Any, form: Form = "occupancy") -> Array:
        """Time of grids of `blocks` blocks, of any shape [s].  Raises EstimatorError for a grid that cannot be launched."""
        count = checked_blocks(blocks)
        if form != "occupancy":
            return np.asarray(self.slope_s * self._billed(count, form) + (self.intercept_s if form == "linear" else 0.0))
        return occupancy_times(count, self.num_sms, self.blocks_per_sm, self.logarithms)[0]

    @property
    def logarithms(self) -> Array:
        """ln t_0, ln t_1, ln t_b, ln p, shape (4,)."""
        return np.log([*self.times_s, self.overlap])

    def energy_j(self, blocks: Any, form: Form = "occupancy") -> Array:
        """Energy of the whole board during grids of `blocks` blocks, same shape [J]; nan without power."""
        count, time = checked_blocks(blocks), self.latency_s(blocks, form)
        if form != "occupancy":
            return np.asarray(self.slope_j * self._billed(count, form) + self.static_w * time)
        return np.asarray(self.energies[0] * count + (self.static_w + self.energies[1]) * time)

    def _billed(self, count: Array, form: Form) -> Array:
        """Blocks that a published form counts: those of the grid, or of its rounds."""
        return count if form == "linear" else self.num_sms * np.ceil(count / self.num_sms)

    def latency_std_s(self, blocks: Any) -> Array:
        """Standard deviation of `latency_s` for one run of a grid: coefficients and, if known, scatter [s]."""
        return np.asarray(np.hypot(self._own_std_s(blocks), self._scatter("time") * self.latency_s(blocks)))

    def energy_std_j(self, blocks: Any) -> Array:
        """Standard deviation of `energy_j` for one run of a grid [J]; nan where unknown."""
        count, time = checked_blocks(blocks), self.latency_s(blocks)
        weights = np.stack([count, time], axis=-1)
        parts = [
            self._scatter("energy") * self.energy_j(blocks),
            self.static_std_w * time,
            np.sqrt(np.einsum("...i,ij,...j->...", weights, self.energy_covariance, weights)),
            (self.static_w + self.energies[1]) * self._own_std_s(blocks),
        ]
        return np.asarray(np.sqrt(sum(np.square(part) for part in parts)))

    def round_power_w(self) -> float:
        """Power of the board while a whole round of resident blocks runs, without launches [W]."""
        round_s = self.round_s()
        return float(self.energies[0] * self.resident_blocks / round_s + self.static_w + self.energies[1])

    def round_s(self) -> float:
        """Time of a whole round of resident blocks [s]."""
        return self.rest_s(self.resident_blocks)

    def rest_s(self, blocks: int) -> float:
        """Time of a round of `blocks` blocks, at most as many as are resident at once [s]."""
        return float(_rounds(np.array(float(math.ceil(blocks / self.num_sms))), self.logarithms)[0])

    def inside(self, blocks: Any) -> Any:
        """Whether grids lie between the smallest and the largest measured one, same shape."""
        count = checked_blocks(blocks)
        return (count >= self.blocks[0]) & (count <= self.blocks[1])

    def _own_std_s(self, blocks: Any) -> Array:
        _, slopes = occupancy_times(checked_blocks(blocks), self.num_sms, self.blocks_per_sm, self.logarithms)
        return np.asarray(np.sqrt(np.einsum("...i,ij,...j->...", slopes, self.time_covariance, slopes)))

    def _scatter(self, quantity: str) -> float:
        found = self.scatter.get("occupancy", {}).get(quantity, math.nan)
        return found if math.isfinite(found) else 0.0


def checked_blocks(blocks: Any) -> Array:
    """Numbers of blocks as float64, any shape.  Raises EstimatorError for values that are not whole or not a valid grid."""
    count = np.asarray(blocks, dtype=np.float64)
    if not np.all((count >= 1) & (count <= MOST_BLOCKS) & (count == np.floor(count))):
        raise EstimatorError(f"a grid has 1 to {MOST_BLOCKS} whole blocks")
    return count


def occupancy_times(blocks: Array, num_sms: int, blocks_per_sm: int, logarithms: Array) -> tuple[Array, Array]:
    """Times of grids of any shape [s], and their derivatives with respect to the logarithms of t_0, t_1, t_b and p, shape (..., 4)."""
    whole, rest = np.divmod(blocks, float(num_sms * blocks_per_sm))
    full_s, full_slopes = _rounds(np.array(float(blocks_per_sm)), logarithms)
    rest_s, rest_slopes = _rounds(np.maximum(np.ceil(rest / num_sms), 1.0), logarithms)
    part = np.where(rest > 0, 1.0, 0.0)
    start_s = np.exp(logarithms[0])
    slopes = whole[..., None] * full_slopes + part[..., None] * rest_slopes
    return start_s + whole * full_s + part * rest_s, np.concatenate([np.full((*np.shape(blocks), 1), start_s), slopes], axis=-1)


def _rounds(shared: Array, logarithms: Array) -> tuple[Array, Array]:
    """Times of rounds with `shared` blocks on the fullest SM [s], and their derivatives with respect to ln t_1, ln t_b, ln p."""
    _, lone, share, ln_norm = logarithms
    norm = np.exp(ln_norm)
    parts = np.stack([np.full(np.shape(shared), lone), share + np.log(shared)], axis=-1)
    top = parts.max(axis=-1, keepdims=True)
    weights = np.exp(norm * (parts - top))
    total = weights.sum(axis=-1)
    weights = weights / total[..., None]
    time_s = np.exp(top[..., 0] + np.log(total) / norm)
    bend = (weights * (parts - top)).sum(axis=-1) - np.log(total) / norm
    return time_s, time_s[..., None] * np.concatenate([weights, bend[..., None]], axis=-1)


# The bundle's section ------------------------------------------------------------------------------------------------------------


def section_of(models: Sequence[BlockModel]) -> Document:
    """The bundle's section: an entry for each model under "kernel/threads@clock"; unknown numbers are null."""
    return {model_key(model): plain(model) for model in models}


def model_key(model: BlockModel) -> str:
    """The name of a model within a bundle."""
    clock = f"@{model.sm_clock_mhz:g}" if math.isfinite(model.sm_clock_mhz) else ""
    return f"{model.kernel}/{model.block_threads}{clock}"


def models_from_section(section: Any, at: str = "block_models") -> Mapping[str, BlockModel]:
    """The models in a bundle's section by name.  Raises BundleError, naming the key, for an invalid model."""
    try:
        found: Mapping[str, BlockModel] = read(Mapping[str, BlockModel], section, at)
    except FaultError as fault:
        raise BundleError(str(fault)) from None
    return found
