"""A campaign of probes: the few kernels that `collect` measures on a GPU to adapt another GPU's bundle to it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from estimator.bundle.content import Bundle
from estimator.model.coefficients import group_words
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.workload import FAMILY_FIELDS, Operator, make_operator
from fitter.errors import CalibrationError
from fitter.transfer.probes import choose_probes


def bundle_kernels(bundle: Bundle) -> tuple[Operator, ...]:
    """The measured kernels that a bundle lists, in the order of its groups."""
    found: dict[Operator, None] = {}
    for group, document in bundle.residuals.items():
        family, *names = group_words(group)
        fields = FAMILY_FIELDS.get(family, ())
        if len(names) < 2 or tuple(document["fields"]) != tuple(fields):
            continue
        columns = (np.broadcast_to(document["points"][name], len(document["ln_error"])) for name in fields)
        more: dict[str, Any] = {"precision_kv": names[2]} if family == "attention" and len(names) > 2 else {}
        for row in np.stack(list(columns), axis=1).tolist():
            sizes = dict(zip(fields, row, strict=True))
            found[make_operator(family, names[0], names[1], cuda_cores="cuda" in names[2:], **more, **sizes)] = None
    return tuple(found)


def plan_probes(bundle: Bundle, count: int, seed: int) -> tuple[Operator, ...]:
    """The probes among the kernels that the bundle lists, the most informative first.  Raises CalibrationError if it lists no kernels."""
    kernels = bundle_kernels(bundle)
    if not kernels:
        raise CalibrationError(f"bundle {bundle.name}: holds no measured kernels to choose from; fit it from kernel measurements")
    return tuple(kernels[i] for i in choose_probes(kernels, count, seed=seed).tolist())


def campaign_text(probes: Sequence[Operator], bundle: Bundle, gpu: GpuSpec) -> str:
    """The campaign in the format of `collect --campaign`."""
    lines = [
        f"# Probes of {gpu.name} for a fit that starts from {bundle.name} {bundle.version}, the most telling first.",
        f'description = "{len(probes)} probes of {gpu.name}"',
    ]
    for probe in probes:
        named = {"family": probe.family, "operator": probe.operator, "precision": probe.precision}
        lines += ["", "[[kernels]]", *(f'{name} = "{word}"' for name, word in named.items()), "count = 1"]
        lines += ["cuda_cores = true"] if probe.cuda_cores else []
        lines += ["[kernels.shape]", *(f"{name} = {size:.0f}" for name, size in probe.named_shape().items())]
    return "\n".join([*lines, ""])
