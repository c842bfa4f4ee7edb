"""How much to run: launches that fill a window, and the work of an operator, to keep it within limits."""

import math
from typing import Final

from estimator.quantities import BYTES_PER_ELEMENT
from estimator.workload import Operator, conv_output_size

MIN_LAUNCHES: Final = 3
"""Fewer launches say nothing about their spread."""

MAX_LAUNCHES: Final = 50_000_000
"""Bound for a run; at the shortest launch seen (2 µs) it lasts 100 s."""


def launches_for(window_s: float, launch_s: float) -> int:
    """Launches of `launch_s` each that last at least `window_s`.  Raises ValueError for times that are not positive."""
    if not (0.0 < launch_s < math.inf and 0.0 < window_s < math.inf):
        raise ValueError(f"a window of {window_s!r} s and launches of {launch_s!r} s: both must be positive and finite")
    return min(MAX_LAUNCHES, max(MIN_LAUNCHES, math.ceil(window_s / launch_s)))


def operator_flop(operator: Operator) -> float:
    """Arithmetic of one launch [flop], from the shape alone; one operation per number where none is defined."""
    match operator.family:
        case "gemm":
            return 2.0 * operator["batch"] * operator["m"] * operator["n"] * operator["k"]
        case "conv":
            positions = _output_positions(operator)
            per_output = operator["channels"] / operator["groups"] * operator["kernel_h"] * operator["kernel_w"]
            return 2.0 * operator["batch"] * operator["filters"] * positions * per_output
        case "attention":
            pairs = operator["queries"] * operator["context"] * (0.5 if operator["causal"] and operator["queries"] > 1 else 1.0)
            return 4.0 * operator["batch"] * operator["heads"] * operator["head_dim"] * pairs
        case "softmax" | "norm" | "reduction":
            return operator["rows"] * operator["dim"]
        case _:
            return max(operator["elements"], operator["reads"])


def operator_bytes(operator: Operator) -> float:
    """Inputs and outputs of one launch, each counted once [byte]."""
    width = BYTES_PER_ELEMENT[operator.precision]
    width_out = BYTES_PER_ELEMENT[operator.precision_out or operator.precision]
    width_kv = BYTES_PER_ELEMENT[operator.precision_kv or operator.precision]
    match operator.family:
        case "gemm":
            m, n, k = operator["m"], operator["n"], operator["k"]
            return operator["batch"] * ((m * k + k * n) * width + m * n * width_out)
        case "conv":
            inputs = operator["batch"] * operator["channels"] * operator["height"] * operator["width"]
            weights = operator["filters"] * operator["channels"] / operator["groups"] * operator["kernel_h"] * operator["kernel_w"]
            return (inputs + weights) * width + operator["batch"] * operator["filters"] * _output_positions(operator) * width_out
        case "attention":
            own = 2.0 * operator["queries"] * operator["heads"] * width
            cached = 2.0 * operator["context"] * operator["kv_heads"] * width_kv
            return operator["batch"] * operator["head_dim"] * (own + cached)
        case "softmax" | "norm":
            return operator["rows"] * operator["dim"] * (width + width_out)
        case "reduction":
            return operator["rows"] * (operator["dim"] * width + width_out)
        case _:
            return operator["elements"] * width_out + operator["reads"] * width


def _output_positions(operator: Operator) -> float:
    height, width = conv_output_size(operator)
    return height * width
