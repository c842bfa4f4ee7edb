"""Coefficients: the fitted parameters of each kernel group, their meaning and their priors.

A coefficient named after a phase is the paper's lambda: real time of the phase over its ideal time, 1 if the
hardware reaches its published rate.  `epsilon_s` is the fixed cost of a kernel.  All are positive, are fitted in
logarithms, and start from a prior: a centre and a width (standard deviation of the natural logarithm).
Source of the priors: fits of published measurements on A100, H100 and H200, see docs/model.md.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import numpy as np

from estimator.model.phases import OVERLAPPED, SERIAL
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import CACHED, Operator, repeats_operand

DEFAULTS: Final[dict[str, float]] = {
    "epsilon_s": 3.0e-6, "floor_s": 0.0, "offset_s": 0.0, "exponent": 2.0, "wave_exponent": 1.0, "small_tile_exponent": 0.0,
    "strided": 1.0, "widest_split": 0.0, "l2_knee": 0.0, "l2_knee_exponent": 4.0,
}  # fmt: skip
"""Coefficients that are not a phase's lambda, with their values for groups that do not name them; a lambda that is not named is 0: its
phase does not exist."""

COEFFICIENTS: Final = (*OVERLAPPED, *SERIAL, "ceiling", *DEFAULTS)
LAMBDAS: Final = tuple(name for name in (*OVERLAPPED, *SERIAL) if name != "start")
"""Coefficients that describe the hardware; fixed costs belong to library and host, exponents to the equations."""
COLUMN: Final[dict[str, int]] = {name: i for i, name in enumerate(COEFFICIENTS)}

MEANING: Final[dict[str, str]] = {
    "math": "tensor-core or CUDA-core time over its ideal [1]",
    "l2": "time to bring tiles or streams from L2 to the SMs over its ideal [1]",
    "dram": "time on DRAM over bytes / published bandwidth [1]",
    "dram_activations": "time on DRAM of a product's activations, or of what norms and softmax read again, over bytes / bandwidth [1]",
    "issue": "instruction issue of element-wise work over its ideal [1]",
    "loop": "latency of the serial reduction loop over its ideal [1]",
    "sfu": "special-function time over its ideal [1]",
    "wait": "memory latency of dependent steps over its ideal [1]",
    "prologue": "filling and draining a block's pipeline over its ideal [1]",
    "epilogue": "writing the result over bytes / published bandwidth [1]",
    "reduce": "split-K reduction traffic over its ideal [1]",
    "reduce_launch": "the part of a split-K reduction's fixed cost that does not follow the SM clock, over 1 µs [1]",
    "reduce_start": "the part of a split-K reduction's fixed cost that follows the SM clock, over 1,000 clocks [1]",
    "quantise": "quantising activations over its ideal [1]",
    "waves": "cost of starting and ending one wave of blocks over its ideal [1]",
    "rows": "cost of one row on an SM over its ideal [1]",
    "row_length": "cost of one more element of a row on an SM over its ideal [1]",
    "store": "the output's way from an SM over bytes / 64 byte per clock [1]",
    "link": "time on the links between GPUs over bytes / published bandwidth [1]",
    "chunks": "passing a message on in chunks over its ideal [1]",
    "ceiling": "shortest time of a product on tensor cores over its ideal at the highest clock; 0: none [1]",
    "start": "the part of a kernel's fixed cost that follows the SM clock, over 1,000 clocks [1]",
    "epsilon_s": "the part of a kernel's fixed cost that does not follow the SM clock [s]",
    "floor_s": "shortest time of one launch that the measuring host saw; it belongs to the host [s]",
    "offset_s": "time before a kernel that a measurement of single launches contains; it belongs to the host [s]",
    "exponent": "p of the norm that joins the overlapped phases [1]",
    "wave_exponent": "1: a partly filled wave costs a whole one; 0: work spreads evenly [1]",
    "small_tile_exponent": "loss of small tiles: (area / 16,384)^-x [1]",
    "strided": "slowdown of copies that change the order of elements [1]",
    "widest_split": "largest split-K factor that the library offers; 0: the usual ones of the architecture [1]",
    "l2_knee": "working set, in L2 sizes, up to which repeated launches find their data in L2 [1]",
    "l2_knee_exponent": "sharpness of that transition [1]",
}
"""Meaning and unit of each coefficient."""

EFFICIENCY_COEFFICIENTS: Final[dict[str, tuple[str, ...]]] = {
    "dram": ("dram", "dram_activations", "epilogue"),
    "l2": ("l2",),
    "tensor": ("math",),
    "cuda": ("issue",),
    "sfu": ("sfu",),
}
"""Coefficients that an efficiency replaces by its inverse."""


@frozen
class Prior:
    """Prior of a coefficient: centre and lowest value, in its unit, and standard deviation of its natural logarithm."""

    centre: float
    width: float
    lowest: float = 0.0


SIXTEEN_BIT: Final = {"fp16": "bf16", "bf16": "fp16"}
"""Formats whose kernels have the same tiles, rates and bytes, each with the other."""

BY: Final = "@"
"""Separator of a group and the library whose kernels it describes; a group without one describes the library with the most rows."""

FRAMEWORK: Final = "pytorch"
"""What groups of kernels are named after whose operators name no library, where another one has more rows: those of the framework."""


def section_words(operator: Operator) -> list[str]:
    """Family, operator and precision: kernels of one library function.  Links carry bytes of any format.

    Element-wise work that repeats an operand runs in the kernel of strided copies, which moves single elements (CUDALoops.cuh,
    gpu_kernel_impl).
    """
    parts = ["copy", "contiguous"] if repeats_operand(operator) else [operator.family, operator.operator]
    parts += [] if operator.family == "communication" else [operator.precision]
    return [*parts, "cuda"] if operator.cuda_cores else parts


NODE_GPUS: Final = 8
"""Most GPUs of one node whose collectives are published (AIConfigurator); those of more have the coefficients of as many."""


def group_key(operator: Operator) -> str:
    """The full dotted group of an operator; coefficients are looked up by its longest known prefix."""
    parts = section_words(operator)
    if operator.family == "communication":
        parts.append(f"n{min(operator['num_gpus'], NODE_GPUS):.0f}")
    elif operator.family in CACHED:
        parts.append(operator.kv_precision)
    if operator.family == "attention":
        parts.append(f"d{operator['head_dim']:.0f}")
    if operator.family in CACHED:
        parts.append(_length_class(operator))
    elif operator.family == "softmax" or operator.operator in ("layernorm", "rmsnorm"):
        # In libraries each longer row of a softmax has its own block, while shorter ones share one; each row of a layer or RMS norm has its
        # own block, and the same length separates the classes (assumed).
        parts.append("long" if operator["dim"] > 1024 else "short")
    return ".".join(parts) + BY + (operator.library or FRAMEWORK)


def _length_class(operator: Operator) -> str:
    """Sequence-length class of an attention kernel; libraries switch kernels near these lengths."""
    if operator["context"] >= 1024:
        return "long"
    return "short" if operator.operator.endswith("prefill") and operator["context"] <= 128 else "medium"


def longest_prefix(key: str, known: Iterable[str]) -> str | None:
    """The longest dotted prefix of `key` among `known`, or None; prefixes with the library of `key` come first.

    Kernels in fp16 and bf16 are alike: a key in one of them also finds a longer prefix in the other.  One in tf32 finds those of bf16 if it
    has none: what all formats share holds how narrow ones are converted (an H200's 39 products in tf32 err by 18 in place of 73 %).
    """
    names = known if isinstance(known, set | frozenset | dict) else set(known)
    plain, by, library = key.partition(BY)
    words = plain.split(".")
    swapped = [SIXTEEN_BIT.get(word, word) for word in words]
    for end in dict.fromkeys((by + library, "")):
        for count in range(len(words), 0, -1):
            for spelling in (words, swapped):
                if (name := ".".join(spelling[:count]) + end) in names:
                    return longest_prefix(key.replace("tf32", "bf16"), names) if "tf32" in words[count:] else name
    return None


def longest_prefixes(keys: Iterable[str], known: Collection[str], found: dict[str, str | None] | None = None) -> list[str | None]:
    """`longest_prefix` of each key; each different one is looked up once, and kept in `found`."""
    found = {} if found is None else found
    return [found[key] if key in found else found.setdefault(key, longest_prefix(key, known)) for key in keys]


def group_words(group: str) -> list[str]:
    """Family, operator, precision and further words of a group's name, without its library."""
    return group.partition(BY)[0].split(".")


class CoefficientTable:
    """Coefficients of groups, ready for lookup."""

    def __init__(self, groups: Mapping[str, Mapping[str, float]]) -> None:
        self.number = {name: i for i, name in enumerate(groups)}
        self.found: dict[str, str | None] = {}
        self.vectors = np.array([coefficient_vector(own) for own in (*groups.values(), {})])

    def rows(self, keys: Iterable[str]) -> tuple[Array, list[str | None]]:
        """Coefficients of kernels, shape (n, len(COEFFICIENTS)), and the group that they come from (None: no group).

        A kernel without a group gets DEFAULTS, which is no prediction; the caller must report it.
        """
        served, none = longest_prefixes(keys, self.number, self.found), len(self.number)
        return self.vectors[np.array([none if name is None else self.number[name] for name in served], dtype=np.int64)], served


_DEFAULT_VECTOR: Final = np.array([DEFAULTS.get(name, 0.0) for name in COEFFICIENTS])


def coefficient_vector(values: Mapping[str, float]) -> Array:
    """One group's coefficients in the order of COEFFICIENTS; those not named take DEFAULTS."""
    vector = _DEFAULT_VECTOR.copy()
    for name, value in values.items():
        vector[COLUMN[name]] = value
    return vector


def column_index(names: Iterable[str]) -> IntArray:
    """Column numbers of coefficients."""
    return np.array([COLUMN[name] for name in names], dtype=np.int64)


HOST_LAUNCH: Final = "host_launch"
HOST_OVERLAP: Final = "host_overlap"
"""Parameters of the host, which do not belong to a kernel."""

_MATRIX: Final = ("gemm", "gemm.bmm", "conv")
_STREAM: Final = ("conv.depthwise", "softmax", "norm", "reduction", "elementwise", "copy", "copy.transpose", "copy.layout")

TIED_COEFFICIENTS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    HOST_LAUNCH: ((), ()),
    HOST_OVERLAP: ((), ()),
    "math.gemm": (("gemm",), ("math",)),
    "math.bmm": (("gemm.bmm",), ("math",)),
    "math.conv": (("conv",), ("math",)),
    "dram": (_MATRIX + _STREAM, ("dram", "dram_activations", "epilogue")),
    "stream": (_STREAM, ("l2",)),
    "memory_latency": (_STREAM, ("loop", "wait")),
    "issue": (_STREAM, ("issue",)),
    "epsilon": (_MATRIX + _STREAM, ("epsilon_s", "start")),
    "prologue": (_MATRIX, ("prologue",)),
}
"""Groups and coefficients that a tied parameter multiplies; refinements of a group ("gemm.linear") follow it unless they are named."""


def parameter_targets(name: str, groups: Iterable[str]) -> list[tuple[str, str]]:
    """(group, coefficient) pairs among `groups` that a tied parameter multiplies; empty for host parameters."""
    roots, coefficients = TIED_COEFFICIENTS[name]
    served = [group for group in groups if longest_prefix(group, _MATRIX + _STREAM) in roots]
    return [(group, coefficient) for group in served for coefficient in coefficients]
