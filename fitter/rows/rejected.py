"""Rejected rows: place and reason of each."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from collector.dataset.schema import FLAGS
from estimator.vocabulary.values import frozen

OTHER_GPU: Final = "OTHER_GPU"
"""The reason of rows that `--gpu` leaves out."""

REASONS: Final = {
    "BAD_LATENCY": "latency missing, not finite, zero or negative",
    "BAD_POWER": "power or energy missing, negative, below that at rest, or contradictory",
    "BAD_SHAPE": "a dimension missing, not a number, or impossible",
    "BAD_TEXT": "a field longer than any name can be, or a row cut before its last field",
    "MARKED": "marked as unusable by the data set itself",
    "UNKNOWN_GPU": "a GPU without a specification",
    "UNKNOWN_OPERATOR": "a kernel that no family describes",
    "UNKNOWN_PRECISION": "a number format that is not known",
    "NO_RATE": "a number format in which the GPU has no matrix units",
    OTHER_GPU: "another GPU than the one asked for",
    "DUPLICATE": "the same row as an earlier one, to the last digit",
    "ABOVE_ROOF": "faster than the hardware's peak rates allow",
    "OTHER_KERNEL": "a kernel that computes otherwise than those of its operator: many times slower than a fused one",
    "SECOND_KERNEL": "a kernel for shapes that another kernel of the library runs faster",
    "EAGER": "launched one by one: the host's time is in it",
    "OUTLIER": "time far from that of all other kernels of its kind",
    "ABSURDLY_SLOW": "a thousand times the time that the hardware needs: another unit than seconds",
    "ABOVE_LIMIT": "power above the power limit",
    "TRUNCATED_RUN": "a run far shorter than the runs of its data set: it failed or was cut off",
    "SHORT_RUN": "energy of a run shorter than an update of a power sensor may be",
    "MISSING_WORKLOAD": "the workload file is missing or cannot be read",
    "WORKLOAD_WITHOUT_OPERATORS": "a workload of which no operator is known",
    "BAD_ITERATIONS": "a number of iterations that cannot be",
    "BAD_TEMPERATURE": "a temperature that no board has",
    "UNKNOWN_ATTENTION": "a form of attention that is not known",
    "BAD_CLOCK": "a clock that the GPU cannot run",
    "SINGLE_SAMPLE": "power from one sensor reading, taken at the launch",
    "HISTORY": "power that carries what ran before",
    "SEQUENCE": "power averaged over this and other kernels",
    "COLD_START": "power of a test that began on an idle GPU",
    "NO_NEIGHBOUR": "power that nothing comparable confirms",
    "UNSET_OPERANDS": "operands that were never initialised, on which power and sustained clock depend",
    "HOST_BOUND": "the host's launches were timed, not the kernel",
    "BAD_HISTOGRAM": "a generated kernel whose machine instructions are missing, or not counted",
    "BAD_NUMBER": "other text than a number, such as one with a unit",
    "BAD_L2_STATE": "a state of L2 that is neither cold nor warm",
    "BAD_LOAD": "a load that is neither burst nor sustained",
    "BAD_COUNT": "a count that is missing, not finite, or not positive",
}
"""Reason codes and their meaning, beside those of flags.  Other codes in a file's `reason` column are kept unchanged."""


@frozen
class RejectedRow:
    """A rejected row: its place, the reason, and the rejected value.

    `power_only`: its power (or energy) was rejected, its latency kept.  `count`: number of rows that it represents if data
    are read in pieces and rows are counted, not listed.
    """

    source: str
    row: int
    reason: str
    detail: str = ""
    power_only: bool = False
    count: int = 1


def count_reasons(rejected: Iterable[RejectedRow], *, power_only: bool | None = None) -> dict[str, int]:
    """Rejected rows by reason, most frequent first; all, fully rejected ones, or those with only the power rejected."""
    counts: Counter[str] = Counter()
    for row in rejected:
        if power_only is None or row.power_only == power_only:
            counts[row.reason] += row.count
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def reason_meaning(reason: str) -> str:
    """Meaning of a reason code, in words."""
    return REASONS.get(reason) or FLAGS.get(reason.lower(), "so marked in the data set")
