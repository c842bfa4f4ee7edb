"""What tests of traces share."""

from collections import Counter

from estimator.workload import Workload

REASON = "PyTorch and Transformers are not installed (pip install 'wattprint[torch]')"


def tally(workload: Workload, *names: str) -> dict[str, float]:
    """How often a workload runs each of these operators."""
    found: Counter[str] = Counter()
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        found[operator.operator] += count
    return {name: found[name] for name in names}
