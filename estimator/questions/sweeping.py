"""Many operating points at once: workloads × bundles × GPUs × clocks as arrays, in pieces of bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Unpack

import numpy as np

from estimator.bundle.content import Bundle
from estimator.bundle.files import told_apart
from estimator.engine.board import Board, BoardSettings, open_board
from estimator.engine.prediction import MOST_NUMBERS, Prediction, predict
from estimator.model.power_limit import Ranges, std_of
from estimator.questions.points import Case, Sweep, joined_sweeps
from estimator.transforms.variation import Variant
from estimator.uncertainty.unseen import unseen_lines
from estimator.uncertainty.validity import bundle_notes, memory_warnings, stuck_lines, validity_of
from estimator.vocabulary.errors import require
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.work import missing_work, workload_warnings
from estimator.vocabulary.workload import Workload


def sweep(
    workloads: Workload | Variant | Sequence[Workload | Variant],
    bundle: Bundle | Sequence[Bundle],
    *,
    gpu: GpuSpec | Sequence[GpuSpec] | None = None,
    **settings: Unpack[BoardSettings],
) -> Sweep:
    """Every workload with every bundle, on every GPU, at every clock; clocks vary fastest, then workloads, GPUs, bundles.

    Arguments are those of `estimate`; gpu None: each bundle's own, sm_clock_mhz None: each GPU's published clock.
    For points that do not fit into memory, see `sweep_chunks`.

    Raises OperatingPointError for a clock outside a GPU's range and for impossible settings.
    """
    return joined_sweeps(list(sweep_chunks(workloads, bundle, gpu=gpu, **settings)))


def sweep_chunks(
    workloads: Workload | Variant | Sequence[Workload | Variant],
    bundle: Bundle | Sequence[Bundle],
    *,
    gpu: GpuSpec | Sequence[GpuSpec] | None = None,
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
    wanted = f"a {kinds[0].__name__}, as {source} gives it, or several"
    if isinstance(given, kinds):
        return [given]
    require(given, Iterable, name, wanted)
    found = list(given)
    for one in found:
        require(one, kinds, name, wanted)
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
    bundle, gpu = prepared.board.bundle, prepared.board.gpu
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
        model_family=workload.model_family,
        bundle=f"{bundle.name} {bundle.version}",
        gpu=gpu.name,
        gpus=workload.gpus,
        simulated=bundle.simulated,
        batch=variant.batch,
        sequence=variant.sequence,
        tokens=variant.tokens,
        precision=variant.precision,
        attention=variant.attention,
        power_limit_w=prepared.board.limit_w,
        fitted_clocks_mhz=bundle.clocks_mhz,
        validity=validity_of(prepared.forecast, (*cannot, *unseen_kinds)),
        warnings=(*workload_warnings(workload), *cannot, *(() if prepared.forecast is None else (prepared.forecast.text,)), *unseen_kinds),
        notes=(*bundle_notes(bundle), *workload.notes),
        too_large=too_large,
        missing=missing_work(workload).share if workload.unknown else 0.0,
        launch_s=prepared.board.launch_s,
    )
