"""What tests of traces share."""

import json
import warnings
from collections import Counter

import pytest

REASON = "PyTorch and Transformers are not installed (pip install 'wattprint[torch]')"


def need_torch():
    """Skip a test, or a whole module, where PyTorch or Transformers is missing; their warnings about running models are nobody's here."""
    warnings.simplefilter("ignore")
    for name in ("torch", "transformers"):
        pytest.importorskip(name, reason=REASON, exc_type=ImportError)


def counted(workload):
    """Operators with their counts."""
    return list(zip(workload.operators, workload.counts, strict=True))


def tally(workload, *names):
    """How often a workload runs each of these operators."""
    found = Counter()
    for operator, count in counted(workload):
        found[operator.operator] += count
    return {name: found[name] for name in names}


def products(workload):
    """Matrix products and convolutions by shape, with how often each runs.

    A product's transpose is the same product, and published lists write depthwise convolutions as dense ones, without their groups.
    """
    found = Counter()
    for operator, count in counted(workload):
        if operator.family == "gemm":
            batch, m, n, k = operator.shape
            found[f"{operator.operator} {batch} {sorted((m, n))} {k}"] += count
        elif operator.family == "conv":
            found[f"conv {operator.shape[:-1]}"] += count
    return dict(found)


def configuration(folder, **fields):
    """A folder with the configuration of a model."""
    (folder / "config.json").write_text(json.dumps(fields))
    return str(folder)


GPT2 = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100}
DECODER = json.loads("""
{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size":
100}
""")
"""Settings that make models small."""

WIDER = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 500}
