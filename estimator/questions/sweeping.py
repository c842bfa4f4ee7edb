"""Predictions at many operating points: workloads × bundles × GPUs × clocks in pieces of bounded memory.

Points are columns of numbers, and the common data of the points of one workload on one GPU.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Generic, TypeVar, Unpack

import numpy as np

from estimator.bundle.content import Bundle
from estimator.bundle.files import told_apart
from estimator.engine.board import Board, BoardSettings, open_board
from estimator.engine.prediction import MOST_NUMBERS, Prediction, predict
from estimator.model.power_limit import STAYS_ABOVE, Ranges, std_of
from estimator.transforms.variation import Variant, several
from estimator.uncertainty.sources import launch_weight
from estimator.uncertainty.unseen import unseen_lines
from estimator.uncertainty.validity import Validity, bundle_notes, clock_warning, memory_warnings, outside_clock, stuck_lines, validity_of
from estimator.vocabulary.errors import OperatingPointError, require
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import NORMAL_90, Array, BoolArray, IntArray
from estimator.vocabulary.values import frozen
from estimator.vocabulary.work import missing_work, workload_warnings
from estimator.vocabulary.workload import Workload

Remarks = list[tuple[str, str]]
"""Lines, each after its workload."""
Lines = list[tuple[int, str]]
"""Lines, each after the index of its case."""

LABELS: Final = ("workload", "bundle", "gpu", "gpus", "batch", "sequence", "precision", "attention")
"""Columns that identify the case of a point."""


LEAST_MISSING: Final = 0.01
"""Least share of operators of unknown kinds that makes an answer unusable."""


@frozen
class Case:
    """Common data of the points of one workload on one GPU.

    gpus: how many of them share the work.  batch, sequence, tokens: 0 if unknown.  fitted_clocks_mhz: lowest and highest fitted SM
    clock of the bundle.
    validity: as in an estimate, for any clock.  warnings: differences between the case and the fitted data, for any clock;
    notes: further information; too_large: the warnings about the board's memory; missing: share of operators of unknown kinds.
    launch_s: host time to launch one framework operator [s]; launch_ln_std: uncertainty of its logarithm where it is assumed [1].
    """

    workload: str
    bundle: str
    gpu: str
    gpus: int
    simulated: bool
    batch: int
    sequence: int
    tokens: float
    precision: str
    attention: str
    power_limit_w: float
    fitted_clocks_mhz: tuple[float, float]
    validity: Validity
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    too_large: tuple[str, ...] = ()
    missing: float = 0.0
    launch_s: float = math.nan
    launch_ln_std: float = 0.0

    @property
    def usable(self) -> bool:
        """Whether the model fits into memory, and all of it is modelled."""
        return not self.too_large and self.missing < LEAST_MISSING


V = TypeVar("V", float, Array)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Values(Generic[V]):
    """Numbers of a point, or their columns."""

    asked_clock_mhz: V
    sm_clock_mhz: V
    latency_s: V
    latency_s_std: V
    power_w: V
    power_w_std: V
    energy_j: V
    energy_j_std: V
    latency_s_std_elsewhere: V
    power_w_std_elsewhere: V
    energy_j_std_elsewhere: V
    gpu_s: V
    launch_bound_share: V
    sm_clock_mhz_low: V
    sm_clock_mhz_high: V
    latency_s_low: V
    latency_s_high: V
    power_w_low: V
    power_w_high: V
    energy_j_low: V
    energy_j_high: V


VALUES: Final = tuple(one.name for one in fields(Values))
"""Columns of numbers of a sweep."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sweep(Values[Array]):
    """Predictions at n operating points, as columns of shape (n,).

    cases             workload and GPU of the points, with warnings
    case              index of each point's case
    asked_clock_mhz   requested SM clock; sm_clock_mhz is the actual one under the power limit [MHz]
    latency_s, power_w, energy_j of one iteration, power and energy of all GPUs of a group, each with its standard deviation `…_std`,
                      nan where unknown: in this laboratory (hardware and habits as behind the bundle); `…_std_elsewhere`: in another one
    …_low, …_high     limits of the 90 % intervals of these and of sm_clock_mhz
    gpu_s             time of the GPU's kernels [s]; launch_bound_share  share of the host's launches in the latency
    above_limit       whether the power stays above the limit even at the lowest clock
    """

    cases: tuple[Case, ...]
    case: IntArray
    above_limit: BoolArray

    def __len__(self) -> int:
        return len(self.case)

    @property
    def unusable(self) -> bool:
        """Whether any point should not be used: it has no time, its model does not fit into memory, or a part of it is not modelled."""
        return not (np.isfinite(self.latency_s).all() and all(case.usable for case in self.present().values()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The columns of every point by name, so that `pandas.DataFrame(points)` has a row for each."""
        columns = self.columns()
        return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))

    def columns(self) -> dict[str, list[Any]]:
        """Every column as a list: LABELS, VALUES, costs of a request, `above_limit`, `outside_fitted_clocks`, `validity`, `fits`,
        `warnings`; nan: unknown number; None: unknown batch or sequence.
        """
        return {
            **{name: [None if value == 0 else value for value in self.label(name)] for name in LABELS},
            **{name: getattr(self, name).tolist() for name in VALUES},
            **{name: column.tolist() for name, column in self.per_request().items()},
            "above_limit": self.above_limit.tolist(),
            "outside_fitted_clocks": self.outside_clock().tolist(),
            "validity": self.validity(),
            "fits": [not found for found in self.label("too_large")],
            "warnings": ["; ".join(found) for found in self.label("warnings")],
        }

    def select(self, index: IntArray | BoolArray) -> "Sweep":
        """The points `index`, a list of indices or a mask; all cases stay."""
        return Sweep(cases=self.cases, **{name: getattr(self, name)[index] for name in (*VALUES, "case", "above_limit")})

    def label(self, name: str) -> list[Any]:
        """A field of every point's case."""
        values = [getattr(case, name) for case in self.cases]
        return list(map(values.__getitem__, self.case.tolist()))

    @property
    def warnings(self) -> Remarks:
        """(workload, line) for every difference between a point, or its case, and the fitted data of its bundle.

        Of several clocks outside the fitted range the first one is named.  A limit that does not hold and memory come first.
        """
        return self._named(self.warnings_of())

    def warnings_of(self) -> Lines:
        """The warnings, each with the index of its case."""
        lines = [(i, STAYS_ABOVE.format(self.cases[i].power_limit_w)) for _, i in self._first(self.above_limit)]
        lines += self._case_lines("warnings")
        for first, i in self._first(self.outside_clock()):
            clocks = float(self.asked_clock_mhz[first]), float(self.sm_clock_mhz[first])
            lines += [(i, line) for line in clock_warning(self.cases[i].fitted_clocks_mhz, *clocks)]
        large = {line for case in self.cases for line in case.too_large}
        return sorted(lines, key=lambda one: one[1] not in large)

    def present(self) -> dict[int, Case]:
        """The cases that have a point, by their indices, in their order."""
        return {i: self.cases[i] for i in sorted(set(self.case.tolist()))}

    def outside_clock(self) -> BoolArray:
        """Whether the requested or the lowered clock of a point is outside the fitted range, shape (n,)."""
        low, high = np.array([case.fitted_clocks_mhz for case in self.cases]).reshape(-1, 2)[self.case].T
        return outside_clock(low, high, self.asked_clock_mhz) | outside_clock(low, high, self.sm_clock_mhz)

    def validity(self) -> list[Validity]:
        """Validity of every point, as in `estimator.questions.estimates.Estimate.validity`."""
        found = zip(self.label("validity"), self.outside_clock().tolist(), strict=True)
        return ["extrapolated" if beyond and one == "measured" else one for one, beyond in found]

    @property
    def notes(self) -> Remarks:
        """(workload, line) for every note; of several points that wait for the host the first one is named."""
        return self._named(self.notes_of())

    @np.errstate(all="ignore")
    def notes_of(self) -> Lines:
        """The notes, each with the index of its case."""
        waits = np.maximum(1.0 - self.gpu_s / self.latency_s, 0.0).round(2)
        host_ln = np.sqrt(launch_weight(self.launch_bound_share)) * self.label("launch_ln_std")
        assumed = host_ln > np.sqrt(0.5) * np.log(self.latency_s_high / self.latency_s_low) / (2.0 * NORMAL_90)  # half of the variance
        lines = self._case_lines("notes")
        for first, i in self._first((assumed | (self.launch_bound_share > 0.3)) & (waits > 0.0)):
            case = self.cases[i]
            doubt = f", assumed ± {case.launch_ln_std:.0%}: most of the latency's ±" if assumed[first] else ""
            cost = f"{1e6 * case.launch_s:.3g} µs an operator (--host-launch-us)"
            lines.append((i, f"the GPU waits {waits[first]:.0%} of the time for the host's launches, {cost}{doubt}"))
        return lines

    def _named(self, lines: Lines) -> Remarks:
        return [(self.cases[i].workload, line) for i, line in lines]

    def _first(self, points: BoolArray) -> list[tuple[int, int]]:
        """The first of these points of every case, with the index of the case."""
        index = np.flatnonzero(points)[::-1]
        first = dict(zip(self.case[index].tolist(), index.tolist(), strict=True))
        return [(first[i], i) for i in sorted(first)]

    def _case_lines(self, kind: str) -> Lines:
        return [(i, line) for i, case in self.present().items() for line in getattr(case, kind)]

    def per_request(self) -> dict[str, Array]:
        """Requests and tokens of an iteration, and costs of each, shape (n,); nan where the batch or the tokens are unknown."""
        served, computed = (np.array([value or np.nan for value in self.label(name)], dtype=np.float64) for name in ("batch", "tokens"))
        return {
            "requests": served,
            "tokens": computed,
            "latency_per_request_s": self.latency_s / served,
            "energy_per_request_j": self.energy_j / served,
            "tokens_per_s": computed / self.latency_s,
            "tokens_per_j": computed / self.energy_j,
        }


def joined_sweeps(sweeps: Iterable[Sweep]) -> Sweep:
    """Several sweeps joined into one."""
    pieces = list(sweeps)
    if not pieces:
        raise OperatingPointError("nothing to sweep: name at least one workload and one bundle")
    offsets = np.cumsum([0, *(len(piece.cases) for piece in pieces[:-1])])
    arrays = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in (*VALUES, "above_limit")}
    case = np.concatenate([piece.case + offset for piece, offset in zip(pieces, offsets, strict=True)])
    return Sweep(cases=tuple(case for piece in pieces for case in piece.cases), case=case, **arrays)


Workloads = Workload | Variant | Sequence[Workload | Variant]
Gpus = GpuSpec | Sequence[GpuSpec] | None


def sweep(
    workloads: Workloads,
    bundle: Bundle | Sequence[Bundle],
    *,
    gpu: Gpus = None,
    **settings: Unpack[BoardSettings],
) -> Sweep:
    """Every workload with every bundle, on every GPU, at every clock; clocks vary fastest, then workloads, GPUs, bundles.

    Arguments are those of `estimate`; gpu None: each bundle's own, sm_clock_mhz None: each GPU's usual clock.
    For points that do not fit into memory, see `sweep_chunks`.

    Raises OperatingPointError for a clock outside a GPU's range and for impossible settings.
    """
    return joined_sweeps(sweep_chunks(workloads, bundle, gpu=gpu, **settings))


def sweep_chunks(
    workloads: Workloads,
    bundle: Bundle | Sequence[Bundle],
    *,
    gpu: Gpus = None,
    most_numbers: int = MOST_NUMBERS,
    **settings: Unpack[BoardSettings],
) -> Iterator[Sweep]:
    """The points of `sweep` piece by piece, in the same order: each piece has at most `most_numbers` kernels × clocks."""
    given = _several(workloads, (Workload, Variant), "workloads", "read_workload")
    chosen = [item if isinstance(item, Variant) else Variant(workload=item) for item in given]
    gpus = [None] if gpu is None else _several(gpu, (GpuSpec,), "gpu", "load_gpu")
    for one in told_apart(_several(bundle, (Bundle,), "bundle", "load_bundle")):
        for spec in gpus:
            yield from pieces_of(chosen, open_board(one, gpu=spec, **settings), most_numbers)


def pieces_of(variants: Sequence[Variant], board: Board, most_numbers: int = MOST_NUMBERS) -> Iterator[Sweep]:
    """Workloads on one board in pieces of at most `most_numbers` kernels × clocks."""
    for part in _parts(variants, len(board.asked_mhz), most_numbers):
        yield table(part, predict([variant.workload for variant in part], board))


def _several(given: Any, kinds: tuple[type, ...], name: str, source: str) -> list[Any]:
    """One or several values as a list.  Raises ArgumentError for values of another type."""
    found = list(several(given))
    for one in found:
        require(one, kinds, name, f"a {kinds[0].__name__}, as {source} gives it, or several")
    return found


def _parts(chosen: Sequence[Variant], clocks: int, most: int) -> Iterator[list[Variant]]:
    part: list[Variant] = []
    kernels = 0
    for variant in chosen:
        own = len(variant.workload.operators)
        if part and (kernels + own) * clocks > most:
            yield part
            part, kernels = [], 0
        part.append(variant)
        kernels += own
    if part:
        yield part


def table(variants: Sequence[Variant], prediction: Prediction) -> Sweep:
    """The points of a prediction; variants: its workloads."""
    shape = prediction.latency_s.shape
    return Sweep(
        cases=tuple(case_of(variant, prediction, i) for i, variant in enumerate(variants)),
        case=np.repeat(np.arange(shape[0]), shape[1]),
        above_limit=prediction.above_limit.flatten(),
        **columns_of(prediction),
    )


OF_GROUP: Final = ("power_w", "energy_j")
"""Values that all GPUs of a group add to."""


@np.errstate(all="ignore")
def columns_of(prediction: Prediction) -> dict[str, Array]:
    """VALUES of a prediction's points, each of shape (v · c,)."""
    found = {name: getattr(prediction, name).flatten() for name in ("sm_clock_mhz", "latency_s", "power_w", "gpu_s")}
    found["asked_clock_mhz"] = np.tile(prediction.prepared.board.asked_mhz, len(prediction.latency_s))
    found["sm_clock_mhz"] = np.where(np.isfinite(found["latency_s"]), found["sm_clock_mhz"], found["asked_clock_mhz"])
    gpus = np.repeat([one.gpus for one in prediction.prepared.workloads], prediction.latency_s.shape[1])
    found["power_w"] *= gpus
    found["energy_j"] = found["power_w"] * found["latency_s"]
    found["launch_bound_share"] = prediction.launch_share.flatten()
    for name in Ranges.__slots__:
        group = gpus if name in OF_GROUP else 1
        ends = getattr(prediction.limits, name).reshape(2, -1) * group
        found[f"{name}_low"], found[f"{name}_high"] = ends
        if name != "sm_clock_mhz":
            found[f"{name}_std"] = std_of(found[name], ends)
            found[f"{name}_std_elsewhere"] = std_of(found[name], getattr(prediction.limits_elsewhere, name).reshape(2, -1) * group)
    return found


def case_of(variant: Variant, prediction: Prediction, i: int) -> Case:
    """The case of workload i."""
    prepared, workload = prediction.prepared, variant.workload
    board = prepared.board
    bundle, gpu = board.bundle, board.gpu
    own = prepared.kernels_of(i)
    blocks, kinds = prepared.blocks_of(i)
    shares = zip(kinds, prediction.usual_shares[blocks].tolist(), strict=True)
    unseen = {kind: share for kind, share in shares if kind.unseen(prepared.priors)}
    too_large = memory_warnings(workload, gpu)
    run = prepared.workloads[i]
    cannot = (*stuck_lines(run.operators, prepared.phases.ideal_math[own], np.isinf(prepared.log_correction[own]), gpu), *too_large)
    unseen_kinds = unseen_lines(run, bundle.domain, prepared.groups[own], prepared.excesses[own], prepared.priors, unseen)
    return Case(
        workload=workload.name,
        bundle=f"{bundle.name} {bundle.version}",
        gpu=gpu.name,
        gpus=workload.gpus,
        simulated=bundle.simulated,
        batch=variant.batch,
        sequence=variant.sequence,
        tokens=variant.tokens,
        precision=variant.precision,
        attention=variant.attention,
        power_limit_w=board.limit_w,
        fitted_clocks_mhz=bundle.clocks_mhz,
        validity=validity_of(prepared.forecast, (*cannot, *unseen_kinds)),
        warnings=(*workload_warnings(workload), *cannot, *(() if prepared.forecast is None else (prepared.forecast.text,)), *unseen_kinds),
        notes=(*bundle_notes(bundle), *run.notes),
        too_large=too_large,
        missing=missing_work(workload).share if workload.unknown else 0.0,
        launch_s=board.launch_s,
        launch_ln_std=board.launch_ln_std,
    )
