"""A campaign of probes: the few kernels that `collect` measures on a GPU to adapt another GPU's bundle to it."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.model.residuals import tier_from_document
from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.workload import FAMILY_FIELDS, Operator, make_operator
from fitter.errors import CalibrationError
from fitter.transfer.prior_bundle import transfer_source
from fitter.transfer.probes import Candidates, choose_probes
from fitter.validate.tables import Shown, kind_text

PREAMBLE: Final = """\
warmup_s = 15.0           # load before anything is measured
idle_settle_s = 3.0
idle_window_s = 3.0
kernels_per_block = 50
every_clock_share = 1.0   # every probe at every clock that is asked for
anchor_every = 60         # rows between repetitions of the anchors

[measurement]
updates = 20              # whole sensor updates behind a power value, at least
window_s = 1.5            # seconds behind it, at least
settle_s = 1.0
gap_s = 0.2
idle_s = 3.0
ranging_s = 0.02
max_temperature_c = 85.0
"""
"""Times of a default campaign."""


def bundle_kernels(bundle: Bundle) -> tuple[Operator, ...]:
    """The measured kernels that a bundle lists, in the order of its groups."""
    found: dict[Operator, None] = {}
    for group, document in bundle.residuals.items():
        parts = group.split(".")
        if len(parts) < 3:
            continue
        tier = tier_from_document(document)
        names = [name for name, _ in tier.fields]
        if names != list(FAMILY_FIELDS.get(parts[0], ())):
            continue
        sizes = np.stack(
            [np.broadcast_to(np.array(document["points"][name], dtype=np.float64), len(tier.points)) for name in names], axis=1
        )
        more: dict[str, Any] = {"precision_kv": parts[3]} if parts[0] == "attention" and len(parts) > 3 else {}
        if "cuda" in parts[3:]:
            more["cuda_cores"] = True
        for row in sizes.tolist():
            try:
                found[make_operator(parts[0], parts[1], parts[2], **more, **dict(zip(names, row, strict=True)))] = None
            except EstimatorError:
                continue  # a shape that a newer version of the format rejects
    return tuple(found)


def plan_probes(bundle: Bundle, gpu: GpuSpec, count: int, seed: int) -> tuple[Operator, ...]:
    """The probes among the kernels that the bundle lists, the most informative first.  Raises CalibrationError if it lists no kernels."""
    kernels = bundle_kernels(bundle)
    if not kernels:
        raise CalibrationError(f"bundle {bundle.name}: holds no measured kernels to choose from; fit it from kernel measurements")
    clock = np.full(len(kernels), gpu.sm_clock_max_mhz)
    candidates = Candidates(operators=kernels, sm_clock_mhz=clock, warm=np.ones(len(kernels), dtype=np.bool_))
    chosen = choose_probes(candidates, gpu, transfer_source(bundle, gpu).values, count, seed=seed)
    return tuple(kernels[i] for i in chosen.tolist())


def campaign_text(probes: Sequence[Operator], bundle: Bundle, gpu: GpuSpec) -> str:
    """The campaign in the format of `collect --campaign`."""
    lines = [
        f"# Probes of {gpu.name} for a fit that starts from {bundle.name} {bundle.version}, the most telling first.",
        f'description = "{len(probes)} probes of {gpu.name}"',
        "",
        PREAMBLE,
    ]
    for probe in probes:
        lines += [
            "[[kernels]]",
            f'family = "{probe.family}"',
            f'operator = "{probe.operator}"',
            f'precision = "{probe.precision}"',
            "count = 1",
        ]
        if probe.cuda_cores:
            lines.append("cuda_cores = true")
        lines.append("[kernels.shape]")
        lines += [f"{name} = {value:.0f}" for name, value in zip(FAMILY_FIELDS[probe.family], probe.shape, strict=True)]
        lines.append("")
    return "\n".join(lines)


def probe_lines(probes: Sequence[Operator]) -> list[str]:
    """The probes as text, a line each."""
    rows = [
        [i, kind_text((p.family, p.operator, p.precision)), ", ".join(f"{name} {size:g}" for name, size in p.named_shape().items())]
        for i, p in enumerate(probes, start=1)
    ]
    return Shown(title="probes, the most telling first", head=("", "kernel", "shape"), rows=rows).lines()
