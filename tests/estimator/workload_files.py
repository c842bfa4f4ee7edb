"""Workload files for tests."""

import json

from estimator import make_operator, read_workload
from estimator.vocabulary.workload import FAMILY_FIELDS, FAMILY_OPERATORS


def save(folder, document, name="model_x_b2.json"):
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def recorded(shared_data, name, completion=True):
    """A published list of operators."""
    return read_workload(shared_data / "energaizer" / "workloads" / f"{name}.json", completion=completion)


def own(*operators, **top):
    return {"format": "wattprint-workload", "format_version": "1.0", "name": "x", "operators": list(operators)} | top


LINEAR = {"family": "gemm", "operator": "linear", "precision": "bf16", "count": 2, "batch": 1, "m": 512, "n": 768, "k": 256}


def sizes(family):
    """Sizes of an operator that may be; all differ where none is tied to another one."""
    tied = family in ("conv", "attention", "moe")
    return {name: 1 if tied else place + 2 for place, name in enumerate(FAMILY_FIELDS[family])}


MADE = [make_operator(family, name, "bf16", **sizes(family)) for family, names in FAMILY_OPERATORS.items() for name in names]
"""One of every kind."""
