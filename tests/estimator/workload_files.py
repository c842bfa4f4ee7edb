"""Workload files for tests."""

import json

from hypothesis import strategies as st

from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.workload import (
    CACHED,
    FAMILY_FIELDS,
    FAMILY_OPERATORS,
    Operator,
)

PRECISIONS = st.sampled_from(sorted(BYTES_PER_ELEMENT))
SIZES = st.integers(1, 2**40)


def save(folder, document, name="model_x_b2.json"):
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def own(*operators, **top):
    return {"format": "wattprint-workload", "format_version": "1.0", "name": "x", "operators": list(operators)} | top


LINEAR = {"family": "gemm", "operator": "linear", "precision": "bf16", "count": 2, "batch": 1, "m": 512, "n": 768, "k": 256}


@st.composite
def operators(draw):
    family = draw(st.sampled_from(sorted(FAMILY_FIELDS)))
    shape = {name: float(draw(SIZES)) for name in FAMILY_FIELDS[family]}
    if family == "conv":
        shape |= {"kernel_h": 3.0, "kernel_w": 2.0, "padding": 1.0, "groups": 1.0, "height": 5.0}
    if family == "attention":
        shape |= {
            "heads": 12.0,
            "kv_heads": float(draw(st.sampled_from([1, 3, 12]))),
            "causal": float(draw(st.integers(0, 1))),
            "window": 0.0,
        }
    if family == "moe":
        shape |= {"topk": 2.0, "experts": 8.0, "ep": 4.0, "inter": 32.0, "tp": 2.0, "skew": draw(st.floats(0, 3)), "gated": 1.0}
    if family == "communication":
        shape["num_gpus"] = 8.0
    if family in ("elementwise", "copy"):
        shape["reads"] = draw(st.floats(1, 1e15))
    return Operator(
        family=family,
        operator=draw(st.sampled_from(FAMILY_OPERATORS[family])),
        precision=draw(PRECISIONS),
        shape=tuple(shape.values()),
        precision_out=draw(st.one_of(st.just(""), PRECISIONS)),
        precision_kv=draw(st.one_of(st.just(""), PRECISIONS)) if family in CACHED else "",
        cuda_cores=draw(st.booleans()),
        host_share=draw(st.floats(0, 10)),
        origin=draw(st.sampled_from(["listed", "completed:batch_norm", "rewritten:attention"])),
    )
