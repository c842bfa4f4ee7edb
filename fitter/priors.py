"""Where coefficients start and how far data may pull them.

Centres and widths come from fits of published measurements (docs/model.md): whole models on A100 and A10, and
matrix products on A100, H100 and H200.  A width is the standard deviation of the coefficient's natural logarithm.
"""

from typing import Final

from estimator.coefficients import Prior

MATRIX: Final[dict[str, Prior]] = {
    "math": Prior(centre=1.05, width=0.2),
    "l2": Prior(centre=1.0, width=0.7),
    "dram": Prior(centre=1.06, width=0.1),
    "dram_activations": Prior(centre=1.06, width=1.0),
    "loop": Prior(centre=1.0, width=0.7),
    "prologue": Prior(centre=1.0, width=0.4),
    "epilogue": Prior(centre=1.06, width=0.7),
    "reduce": Prior(centre=1.0, width=1.0),
    "reduce_launch": Prior(centre=2.0, width=0.7),
    "quantise": Prior(centre=1.0, width=0.7),
    "exponent": Prior(centre=1.5, width=0.5),
    "wave_exponent": Prior(centre=1.0, width=0.7),
    "small_tile_exponent": Prior(centre=0.2, width=0.7),
    "epsilon_s": Prior(centre=3.0e-6, width=0.4),
}
"""Matrix products: GEMM, batched GEMM, convolution."""

STREAM: Final[dict[str, Prior]] = {
    "dram": Prior(centre=1.06, width=0.1),
    "l2": Prior(centre=1.0, width=0.15),
    "issue": Prior(centre=1.0, width=0.25),
    "exponent": Prior(centre=2.0, width=0.3),
    "epsilon_s": Prior(centre=3.0e-6, width=0.4),
}
"""Kernels that stream through memory."""

STRIDED: Final[dict[str, Prior]] = {**STREAM, "strided": Prior(centre=1.3, width=0.3)}
"""Copies that change the order of elements."""

ATTENTION_PREFILL: Final[dict[str, Prior]] = {
    "math": Prior(centre=1.5, width=0.5),
    "sfu": Prior(centre=0.5, width=1.0),
    "dram": Prior(centre=1.1, width=0.5),
    "waves": Prior(centre=1.0, width=1.0),
    "rows": Prior(centre=1.0, width=1.0),
    "epsilon_s": Prior(centre=5.0e-6, width=0.7),
    "exponent": Prior(centre=1.0, width=1e-6),
}

ATTENTION_DECODE: Final[dict[str, Prior]] = {
    "math": Prior(centre=1.0, width=1.0),
    "dram": Prior(centre=1.2, width=0.3),
    "waves": Prior(centre=1.0, width=1.0),
    "rows": Prior(centre=1.0, width=1.0),
    "row_length": Prior(centre=1.0, width=1.0),
    "epsilon_s": Prior(centre=5.0e-6, width=0.7),
    "exponent": Prior(centre=1.0, width=1e-6),
}

GROUP_PRIORS: Final[dict[str, dict[str, Prior]]] = {
    "gemm": MATRIX,
    "gemm.bmm": {**MATRIX, "math": Prior(centre=1.5, width=0.25)},
    "conv": {**MATRIX, "math": Prior(centre=1.45, width=0.3)},
    "conv.depthwise": STREAM,
    "attention.prefill": ATTENTION_PREFILL,
    "attention.decode": ATTENTION_DECODE,
    "softmax": STREAM,
    "norm": STREAM,
    "reduction": STREAM,
    "elementwise": STREAM,
    "copy": STREAM,
    "copy.transpose": STRIDED,
    "copy.layout": STRIDED,
}
"""Priors by group; a kernel takes those of its longest prefix."""

HOST_LAUNCH: Final = Prior(centre=30e-6, width=0.5)
"""Host cost of one framework operator in eager PyTorch [s]."""
