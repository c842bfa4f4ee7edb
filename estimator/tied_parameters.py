"""Which coefficients a bundle's latency parameters stand for.

A fit of kernels names a parameter after its group and coefficient ("gemm.linear.math"); runs of whole workloads cannot tell
groups apart and tie coefficients of several under one name.  `fitter.latency.runs` fits the latter; a test holds both to one meaning.
"""

from collections.abc import Iterable
from typing import Final

from estimator.coefficients import COLUMN

HOST_LAUNCH: Final = "host_launch"
HOST_OVERLAP: Final = "host_overlap"
"""The parameters of the host, which no kernel has."""

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
    "issue": (_STREAM, ("issue",)),
    "epsilon": (_MATRIX + _STREAM, ("epsilon_s", "start")),
    "prologue": (_MATRIX, ("prologue",)),
}
"""Groups and coefficients that a tied parameter multiplies; refinements of a group ("gemm.linear") follow it unless they are named."""


def parameter_targets(name: str, groups: Iterable[str]) -> list[tuple[str, str]]:
    """(group, coefficient) pairs among `groups` that a parameter multiplies; empty for the host's and for names of no coefficient."""
    if name in TIED_COEFFICIENTS:
        roots, coefficients = TIED_COEFFICIENTS[name]
        served = [group for group in groups if _root(group) in roots]
        return [(group, coefficient) for group in served for coefficient in coefficients]
    group, _, coefficient = name.rpartition(".")
    return [(group, coefficient)] if coefficient in COLUMN and group in groups else []


def _root(group: str) -> str:
    """The tied group whose parameters serve a group: its longest prefix among them."""
    known = (*_MATRIX, *_STREAM)
    while group and group not in known:
        group = group.rpartition(".")[0]
    return group
