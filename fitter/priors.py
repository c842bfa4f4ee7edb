"""Priors: centre and width of every coefficient.

Centres and widths come from fits of published measurements (docs/model.md): whole models on A100 and A10, and
matrix products on A100, H100 and H200.  A width is the standard deviation of the coefficient's natural logarithm.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from estimator.model.coefficients import Prior, group_words, longest_prefix
from estimator.model.gemm import WARP_RATE
from estimator.model.phases import START_CLOCKS
from estimator.model.timeline import LAUNCH_OVERLAP_EXPONENT
from estimator.uncertainty.laboratory import HOST_S, HOST_STD
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import FORMATS, HZ_PER_MHZ
from estimator.vocabulary.workload import CACHED

Coefficients = Mapping[str, Mapping[str, float]]
"""Coefficients by group and name."""

Scales = Mapping[str, tuple[float, float]]
"""ln(scale) of each collection, and its standard deviation."""

Priors = dict[str, Prior]
"""Priors by the name of the coefficient."""


def table(**priors: tuple[float, float]) -> Priors:
    """Priors by name, each given as its centre and its width."""
    return {name: Prior(centre=centre, width=width) for name, (centre, width) in priors.items()}


MATRIX: Final = table(
    math=(1.05, 0.2),
    l2=(1.0, 0.7),
    dram=(1.06, 0.1),
    dram_activations=(1.06, 1.0),
    loop=(1.0, 0.7),
    prologue=(1.0, 0.4),
    epilogue=(1.06, 0.7),
    reduce=(1.0, 1.0),
    reduce_launch=(2.0, 0.7),
    quantise=(3.5, 0.4),
    exponent=(2.6, 0.3),
    wave_exponent=(1.0, 0.7),
    small_tile_exponent=(0.2, 0.7),
    epsilon_s=(1.5e-6, 0.4),
    start=(1.35, 0.4),
)
"""Matrix products: GEMM, batched GEMM, convolution.  The overlap of their phases (`exponent`) comes from products measured alone."""

FILL_FLOP_PER_CLOCK: Final = 1024.0
"""Rate of an SM's matrix units at which filling a pipeline takes its ideal steps [flop / (clock · SM)].  Filling waits for memory, so it
takes clocks: from one centre, runs of an A100 (2,048) and an A10 (1,024) need 1.8 and 0.87 times the steps, but similar clocks."""

STREAM: Final = table(
    dram=(1.06, 0.1),
    l2=(1.0, 0.15),
    issue=(1.0, 0.25),
    loop=(1.0, 0.7),
    wait=(1.0, 0.7),
    waves=(0.7, 0.7),
    exponent=(2.0, 0.3),
    epsilon_s=(1.5e-6, 0.4),
    start=(1.35, 0.4),
)
"""Kernels that stream through memory.  Their blocks wait for it round after round (`loop`, `wait`, `waves`), in runs as where
they are measured alone."""

STRIDED: Final = STREAM | table(strided=(1.2, 0.3))
"""Priors of copies that change the order of elements; cuDNN's changes of layout count as plain ones (docs/model.md, Convolutions)."""

ATTENTION_PREFILL: Final = table(
    math=(1.5, 0.5),
    sfu=(0.5, 1.0),
    dram=(1.1, 0.5),
    waves=(1.0, 1.0),
    rows=(1.0, 1.0),
    epsilon_s=(2.5e-6, 0.7),
    start=(2.2, 0.7),
    exponent=(1.0, 1e-6),
)

ATTENTION_DECODE: Final = table(
    math=(1.0, 1.0),
    dram=(1.2, 0.3),
    waves=(1.0, 1.0),
    rows=(1.0, 1.0),
    row_length=(1.0, 1.0),
    loop=(1.0, 0.5),
    epsilon_s=(2.5e-6, 0.7),
    start=(2.2, 0.7),
    exponent=(2.0, 0.4),
)

COMMUNICATION: Final = table(link=(1.2, 0.8), chunks=(1.0, 1.0), epsilon_s=(5e-6, 1.0), start=(2.2, 0.7), exponent=(2.0, 1e-6))
"""Priors of collectives; the start includes the wait for other GPUs.  Centres: published tables of H100."""

UNSPLIT: Final = table(widest_split=(1.0, 0.0))
BLOCK_SCALED: Final = frozenset({"fp8_block", "nvfp4"})
"""Formats with a scale for every block, whose reductions the measured libraries do not split: DeepGEMM in fp8 (deepseek-ai/DeepGEMM, pull
request 186 would), in nvfp4 TensorRT-LLM by its times on a B200."""

GROUP_PRIORS: Final = {
    "gemm": MATRIX,
    "gemm.bmm": MATRIX | table(math=(1.5, 0.25)),
    "conv": MATRIX | table(math=(1.2, 0.3)),
    "conv.depthwise": STREAM,
    "attention.prefill": ATTENTION_PREFILL,
    "attention.decode": ATTENTION_DECODE,
    "mla.mla_prefill": ATTENTION_PREFILL,
    "mla.mla_decode": ATTENTION_DECODE,
    "moe": MATRIX | UNSPLIT,
    "communication.all_reduce": COMMUNICATION,
    "communication.all_gather": COMMUNICATION,
    "communication.reduce_scatter": COMMUNICATION,
    "communication.all_to_all": COMMUNICATION,
    "quantise": STREAM,
    "softmax": STREAM,
    "norm": STREAM,
    "reduction": STREAM,
    "elementwise": STREAM,
    "copy": STREAM,
    "copy.transpose": STRIDED,
    "copy.layout": STREAM,
}
"""Priors by group; a kernel uses those of its longest prefix."""

HOST_LAUNCH: Final = Prior(centre=HOST_S, width=HOST_STD)
"""Host cost of one framework operator in eager PyTorch [s]."""

HOST_OVERLAP: Final = Prior(centre=LAUNCH_OVERLAP_EXPONENT, width=1.5)
"""Sharpness of the maximum of GPU time and host launch time: uncertain until runs with similar times are seen.  An iteration that starts
on an idle GPU gives a hard maximum; a host with a varying pace softens it."""

PERSISTENT: Final = table(
    wave_exponent=(0.2, 0.5),
    l2=(0.4, 0.7),
    exponent=(3.5, 0.3),
    reduce=(0.8, 0.7),
    prologue=(0.2, 0.7),
)
"""Different priors of matrix products with persistent blocks that process several tiles: Hopper and later."""

PERSISTENT_ARCHITECTURES: Final = frozenset({"hopper", "blackwell"})

CEILING: Final = table(ceiling=(1.4, 0.05))
"""Prior of the ceiling of products in tables of one clock, which has no proven cause: probably the board lowers its clock even in short
measurements, since tensor cores would draw more than the limit.  So it is constant in seconds: an H200 at 1,476 MHz reaches 704 TFLOP/s
(`bundles/data/h200-sxm`); of the 793 fitted to its table at 1,980 MHz a ceiling that follows the clock would leave 590.  Centre and width
were chosen on tables of H100, H200 and B200: a wide prior finds a wrong ceiling where the largest products are left out (H200, fp8)."""

LISTED_ALONE: Final = table(wave_exponent=(0.95, 0.7), dram=(1.15, 0.15), l2=(0.8, 0.7))
"""Different priors of matrix products that are launched alone, with cold operands; the overlap of phases is the same."""

BLOCK_ENDS: Final = table(waves=(0.5, 0.7), store=(0.5, 0.7))
"""Priors of starts and ends of the blocks of a product that is launched alone."""

REDUCE_START: Final = Prior(centre=1.0, width=0.7)
"""Prior of the part of a split reduction's fixed cost that scales with the SM clock."""

CUDA_CORES: Final = table(
    math=(1.0, 0.1),
    l2=(0.5, 0.7),
    dram_activations=(1.0, 0.5),
    loop=(0.5, 0.7),
    epilogue=(0.5, 0.7),
    reduce=(0.5, 1.0),
    reduce_launch=(8.0, 0.5),
    exponent=(1.5, 0.5),
    small_tile_exponent=(0.05, 1.0),
)
"""Different priors of matrix products without tensor cores."""

ROWS: Final = table(
    l2=(1.0, 0.3),
    issue=(1.0, 0.3),
    rows=(1.0, 0.7),
    row_length=(0.2, 0.5),
    dram_activations=(1.0, 0.3),
)
"""Priors of softmax and normalisations over rows, with the latency of a row and the DRAM traffic of its second pass."""

ATTENTION_ALONE: Final = table(
    exponent=(2.0, 0.5),
    math=(1.3, 0.5),
    l2=(1.0, 0.7),
    issue=(0.7, 0.7),
    loop=(1.0, 0.7),
    wait=(0.5, 0.7),
    reduce=(1.0, 0.7),
)
"""Priors of attention launched alone, where the rows suffice to separate its phases."""

TAPS: Final = table(issue=(0.6, 0.7))
"""Depthwise convolutions: how well a library's kernel reuses addresses and neighbours differs from one to the next."""

KNEE: Final = table(l2_knee=(0.7, 0.4), l2_knee_exponent=(3.0, 0.5))
"""Priors of repeated launches that find their operands in L2."""

FLOOR_WIDTH: Final = 0.1
"""A host's launch floor is seen directly [ln]."""

EQUATION_ERROR: Final = 0.08
"""Standard deviation of the fitted equations' error from kernel to kernel [ln], from published tables."""

IDENTIFIED_SHRINKAGE: Final = 0.7
"""A coefficient is identified when the data shrink its prior's width to below this share."""

LIMITS: Final = {
    "exponent": (1.0, 10.0),
    "wave_exponent": (0.01, 1.0),
    "small_tile_exponent": (0.001, 1.0),
    "l2_knee": (0.1, 3.0),
    "l2_knee_exponent": (1.0, 12.0),
}
"""Limits of coefficients; beyond them a coefficient would change its meaning."""

WIDEST_SHIFT: Final = 4.0
"""Other coefficients stay within this many prior widths of their centre, so that fits of few rows do not diverge."""


def kernel_priors(key: str, gpu: GpuSpec, *, cuda_cores: bool, warm: bool, one_clock: bool) -> Priors:
    """Priors of the group `key` for kernels that were measured alone.

    cuda_cores: matrix products without tensor cores; warm: some rows found their operands in L2; one_clock: all rows ran
    at one clock, which cannot separate the two parts of a kernel's fixed cost.
    """
    priors = dict(GROUP_PRIORS[longest_prefix(key, GROUP_PRIORS) or "elementwise"])
    if one_clock:
        start_s = priors.pop("start").centre * START_CLOCKS / (gpu.sm_clock_max_mhz * HZ_PER_MHZ)
        epsilon = priors["epsilon_s"]
        priors["epsilon_s"] = Prior(centre=epsilon.centre + start_s, width=epsilon.width)
    attends = key.partition(".")[0] in CACHED
    persistent = gpu.architecture in PERSISTENT_ARCHITECTURES
    if "math" in priors and not attends:
        priors |= BLOCK_ENDS if one_clock else BLOCK_ENDS | {"reduce_start": REDUCE_START}
        priors |= LISTED_ALONE | (CUDA_CORES if cuda_cores else PERSISTENT if persistent else {})
        if key.startswith("gemm"):
            priors["math"] = replace(priors["math"], lowest=1.0)
            priors |= CEILING if one_clock and persistent and not cuda_cores else {}
            priors |= UNSPLIT if BLOCK_SCALED.intersection(group_words(key)) else {}
        elif key.startswith("conv") and not cuda_cores:  # on CUDA cores Winograd's compute less
            priors["math"] = replace(priors["math"], lowest=WARP_RATE.get(gpu.architecture, 1.0))
        if not any(FORMATS[part].converts for part in group_words(key) if part in FORMATS):
            priors.pop("quantise")
    elif attends:
        priors |= {} if persistent and "decode" in group_words(key)[1] else ATTENTION_ALONE
    elif key.startswith(("softmax", "norm.layernorm", "norm.rmsnorm")):
        priors |= ROWS
    elif key.startswith("conv.depthwise"):
        priors |= TAPS
    if warm:
        priors |= KNEE
    return priors


def around(values: Mapping[str, float], priors: Mapping[str, Prior], narrowing: float) -> Priors:
    """The same priors centred on known values, with `narrowing` of their widths; a name without a value keeps its prior."""
    return {
        name: replace(prior, centre=values[name], width=prior.width * narrowing) if values.get(name, 0.0) > 0.0 else prior
        for name, prior in priors.items()
    }
