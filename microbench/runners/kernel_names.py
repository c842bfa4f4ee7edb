"""Kernel name → library, role, tile, reduction step, stages, warps, instruction, split-K.

The reading of matrix tiles is `estimator.kernel_names`: the fit needs it for tables that hold names only.  Here is the
rest of what a profiler's name says, for the kernels that the load's libraries launch.  Forms, each with the figures that
it carries (t: bf16, h: fp16, s: fp32, q: fp8 in cuBLAS's letters; numbers in the order of the name):

    ampere_bf16_s16816gemm_bf16_128x64_sliced1x2_ldg8_f2f_stages_64x3_tn       tile, slices of K, step x stages, layouts
    sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x32x64_stage6_warpsize2x2x1_tensor16x8x16_execute_kernel__5x_cublas
    cutlass_80_tensorop_s16816gemm_f16_128x64_64x6_tn_align8                   tile, step x stages, layouts
    cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_tnn_align8_warpspecialized_…
    nvjet_sm90_tst_192x192_64x3_2x1_v_bz_coopB_NTN                             tile, step x stages, cluster, layouts
    nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN           tile and step, stages, tile of a warp
    void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, …>>   head, queries, keys, warps
    cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_…   queries, keys, head, warps
    fmha_cutlassF_bf16_aligned_64x128_rf_sm80                                  queries, keys
    void at::native::vectorized_elementwise_kernel<4, …>                       elements of a thread

Sources: names in the NeuSight tables, NVIDIA/cutlass media/docs/profiler.md and issue 1025, and public profiles that
tests/microbench_library/test_names.py cites one by one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from estimator.kernel_names import LONGEST_NAME, NO_TILE, PERSISTENT, SPLIT_WORD, KernelTile, NamedTile, named_tile, tile_from_name

__all__ = ["NO_TILE", "KernelName", "KernelTile", "NamedTile", "named_tile", "parse_kernel_name", "tile_from_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelName:
    """What a kernel's name says.

    `library` is "cublas", "cutlass", "cudnn", "flash-attention", "pytorch", "cub", "cupy"; `role` what the kernel does.  `tile` is
    the block's output tile in the order of the name (queries, keys for attention; empty where there is none),
    `tile_k` its reduction step (head size for attention), `warps` the warps or slices of a block along m, n, k,
    `warp_tile` the tile of one warp, `cluster` blocks that work together.  `instruction` is the matrix instruction's
    shape as named ("16816", "16x8x16"), "ffma" for kernels without tensor cores, "" where the name does not say.
    `splits` is true where the name says that blocks share a reduction, `transpose` the layouts of the operands in
    lower case ("tn"), `persistent` whether blocks work through several tiles, `vector` the elements that a thread
    handles at a time.  Numbers are 0 where the name does not say.
    """

    library: str
    role: str
    generation: str = ""
    tile: tuple[int, ...] = ()
    tile_k: int = 0
    stages: int = 0
    warps: tuple[int, ...] = ()
    warp_tile: tuple[int, ...] = ()
    cluster: tuple[int, ...] = ()
    instruction: str = ""
    splits: bool = False
    transpose: str = ""
    persistent: bool = False
    vector: int = 0


GENERATION: Final = re.compile(r"(kepler|maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell)_|(sm_?\d{2,3})(?!\d)|cutlass_(\d{2,3})_")
LAYOUT: Final = re.compile(r"_([nt]{2})(?:[nt])?(?=_|$|>|::|<)|_([NT]{3,4})(?=_|$)")
SLICES: Final = re.compile(r"sliced(\d+)x(\d+)")
WARPS: Final = re.compile(r"warp(?:group)?size(\d+)x(\d+)x(\d+)")
NVJET: Final = re.compile(
    r"nvjet_(?:sm(?P<sm>\d+)_)?(?P<types>[a-z0-9]+)_(?:mma_)?\d+x\d+(?:x\d+_\d+_(?P<warp>\d+x\d+)x\d+|_\d+x\d+)(?:_(?P<cluster>\d+x\d+))?"
)
CLUSTER_3X: Final = re.compile(r"_\d+x\d+x\d+_(\d+)x(\d+)x(\d+)_\d")
INSTRUCTIONS: Final = (
    (re.compile(r"tensor(\d+x\d+x\d+)"), ""),
    (re.compile(r"[a-z](\d+x\d+x\d+)(?:gemm|fprop|dgrad|wgrad)"), ""),
    (re.compile(r"(?:[a-z_]|^)(16816|161616|16832|16864|1688|884|88128|8832|168256)(?:gemm|fprop|dgrad|wgrad|cudnn)"), ""),
    (re.compile(r"_ffma_|simt|sgemm|dgemm|scudnn"), "ffma"),
)
"""Where a name gives its matrix instruction; the first that fits."""

MATRIX: Final = re.compile(
    r"nvjet_|(?:[a-z]|\d|_)gemm(?:_|<|$|[A-Z])|xmma_|cutlass(?:3x)?_\w{0,99}(?:gemm|fprop|dgrad|wgrad|conv)|GemmUniversal|scudnn|winograd|"
    r"implicit_convolve|convolve_common|gemm_kernel|conv2d|depthwise|dgrad2d|wgrad|fprop|Kernel2?<cutlass",
)
CONVOLUTION: Final = re.compile(r"fprop|dgrad|wgrad|conv|scudnn|winograd", re.IGNORECASE)
CUTE_TUPLE: Final = re.compile(r"cute::tuple<cute::C<(\d+)>,\s*cute::C<(\d+)>,\s*cute::C<(\d+)>\s*>")
CASTS: Final = re.compile(r"\((?:int|bool|unsigned int|unsigned long|long)\)|\(anonymous namespace\)::|<unnamed>::")
"""What demanglers write differently."""

NO_SIZE: Final = re.compile(r"[0-9]{8,}")
"""Digits too many for a size: an address or a digest in a name."""

FLASH_TRAITS: Final = re.compile(r"(?:fwd|bwd)_kernel_traits<\s*(\d+),\s*(\d+),\s*(\d+),\s*(\d+)", re.IGNORECASE)
FLASH_SM90: Final = re.compile(r"FlashAttn\w{0,99}Sm\d+")
CUDNN_ATTENTION: Final = re.compile(r"sdpa_(sm\d+)\w{0,99}?_(\d+)x(\d+)x(\d+)_(\d+)x(\d+)x(\d+)")
FMHA: Final = re.compile(r"fmha_cutlass[FB]_\w{1,33}?_(\d+)x(\d+)_\w{0,33}?(sm\d+)")
VECTOR: Final = re.compile(r"^\w*<\s*(\d+)(?:,\s*(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Simple:
    """A kernel whose name carries no tile: what it is called, whose it is and what it does."""

    pattern: re.Pattern[str]
    library: str
    role: str


SIMPLE: Final = tuple(
    _Simple(pattern=re.compile(pattern, re.IGNORECASE), library=library, role=role)
    for pattern, library, role in (
        (r"split_?k_?reduce|splitkreduce", "cublas", "split-k reduction"),
        (r"gemv|gemmk1|gemmsn|dot_kernel|reduce_1block", "cublas", "matrix-vector product"),
        (r"scal_kernel|axpy|asum|nrm2|copy_kernel<.{0,999}cublas", "cublas", "vector"),
        (r"softmax", "pytorch", "softmax"),
        (r"layer_?norm|rms_?norm|rowwisemoments|batch_?norm|bn_fw|group_?norm|moments", "pytorch", "norm"),
        (r"nchwtonhwc|nhwctonchw|transposereadwrite|catarray|direct_copy|copy_device_to_device|permut", "pytorch", "copy"),
        (r"index_?select|vectorized_gather|gather|embedding|index_elementwise|index_kernel|scatter", "pytorch", "gather"),
        (r"devicereduce|devicescan|cub::|devicesegmentedreduce", "cub", "reduction"),
        (r"reduce_kernel|reduceop|reduction", "pytorch", "reduction"),
        (r"fused_dropout|dropout", "pytorch", "dropout"),
        (r"distribution_|curand|philox|normal_and_transform", "pytorch", "random"),
        (r"max_?pool|avg_?pool|average_?pool|adaptive", "pytorch", "pool"),
        (r"elementwise|pointwise|foreach|functor|fillfunctor", "pytorch", "elementwise"),
        (r"^cupy_\w*(?:sum|max|min|prod|mean)", "cupy", "reduction"),
        (r"^cupy_", "cupy", "elementwise"),
    )
)
"""Kernels without tiles, the more particular before the more general."""


def parse_kernel_name(name: str) -> KernelName | None:
    """What a kernel's name says; None where no form fits.

    Any text has an answer, in a time that goes with its length at most: what may stand between two words of a form is bounded, and so is
    what is read of a name.
    """
    plain = NO_SIZE.sub("#", CASTS.sub("", name[:LONGEST_NAME])).removeprefix("void ").strip()
    for reader in READERS:
        found = reader(plain)
        if found is not None:
            return found
    return None


def _attention(name: str) -> KernelName | None:
    """FlashAttention 2 and 3, cuDNN's and PyTorch's memory-efficient attention."""
    if match := CUDNN_ATTENTION.search(name):
        queries, keys, head, *warps = (int(match.group(i)) for i in range(2, 8))
        return KernelName(
            library="cudnn", role="attention", generation=match.group(1), tile=(queries, keys), tile_k=head, warps=tuple(warps)
        )
    if "_sdpa_" in name:
        return KernelName(library="cudnn", role="attention", generation=_generation(name))
    if match := FMHA.search(name):
        tile = (int(match.group(1)), int(match.group(2)))
        return KernelName(library="pytorch", role="attention", generation=match.group(3), tile=tile)
    if "flash" not in name.lower():
        return None
    role = "attention reduction" if "combine" in name.lower() else "attention"
    splits = "splitkv" in name.lower() or role == "attention reduction"
    if match := FLASH_TRAITS.search(name):
        head, queries, keys, warps_m = (int(match.group(i)) for i in range(1, 5))
        return KernelName(library="flash-attention", role=role, tile=(queries, keys), tile_k=head, warps=(warps_m, 1, 1), splits=splits)
    tuples = [tuple(int(size) for size in match.groups()) for match in CUTE_TUPLE.finditer(name)]
    if FLASH_SM90.search(name) and len(tuples) > 1:  # the first is the cluster, the second queries, keys, head
        queries, keys, head = tuples[1]
        return KernelName(
            library="flash-attention", role=role, generation="sm90", tile=(queries, keys), tile_k=head, cluster=tuples[0], splits=splits
        )
    return KernelName(library="flash-attention", role=role, generation=_generation(name), splits=splits)


def _matrix(name: str) -> KernelName | None:
    """Matrix products and convolutions."""
    if re.search(r"split_?k_?reduce|gemv|gemmk1|gemmsn", name, re.IGNORECASE) or not MATRIX.search(name):
        return None
    tile = named_tile(name)
    jet = NVJET.search(name)
    warps = WARPS.search(name) or SLICES.search(name)
    sizes = tuple(int(size) for size in warps.groups()) if warps else ()
    if len(sizes) == 2:  # sliced1x4: slices of the reduction inside a block
        sizes = (0, 0, sizes[0] * sizes[1])
    return KernelName(
        library=_matrix_library(name),
        role="convolution" if CONVOLUTION.search(name) else "gemm",
        generation=f"sm{jet.group('sm')}" if jet and jet.group("sm") else _generation(name),
        tile=(tile.first, tile.second) if tile else _cute_tile(name)[:2],
        tile_k=tile.tile_k if tile else (_cute_tile(name) or (0, 0, 0))[2],
        stages=tile.stages if tile else 0,
        warps=sizes,
        warp_tile=_sizes(jet.group("warp")) if jet else (),
        cluster=_sizes(jet.group("cluster")) if jet else _cluster(name),
        instruction=_instruction(name),
        splits=SPLIT_WORD.search(name) is not None,
        transpose=_transpose(name),
        persistent=PERSISTENT.search(name) is not None,
    )


def _simple(name: str) -> KernelName | None:
    """Kernels of PyTorch, CUB and CuPy; those of cuBLAS without a tile."""
    for simple in SIMPLE:
        if simple.pattern.search(name):
            head = name.rsplit("::", 1)[-1] if "<" not in name else name.split("<", 1)[0].rsplit("::", 1)[-1] + "<" + name.split("<", 1)[1]
            match = VECTOR.match(head) if simple.library == "pytorch" and simple.role in VECTOR_FIRST else None
            numbers = tuple(int(size) for size in match.groups() if size) if match else ()
            transpose = re.search(r"gemv2?([NT])", name)
            return KernelName(
                library=simple.library,
                role=simple.role,
                vector=numbers[-1] if numbers else 0,
                transpose=transpose.group(1).lower() if transpose else "",
                splits=simple.role == "split-k reduction",
            )
    return None


VECTOR_FIRST: Final = frozenset({"elementwise", "copy", "reduction", "softmax"})
"""Roles whose first template numbers end in the elements of a thread."""

READERS: Final[tuple[Callable[[str], KernelName | None], ...]] = (_attention, _matrix, _simple)
"""Forms of names, tried in this order."""


def _matrix_library(name: str) -> str:
    if "cudnn" in name or "winograd" in name or "implicit_convolve" in name:
        return "cudnn"
    if "cutlass" in name and "nvjet" not in name:
        return "cutlass"
    if "at::native" in name:
        return "pytorch"
    return "cudnn" if "xmma" in name and CONVOLUTION.search(name) else "cublas"


def _generation(name: str) -> str:
    match = GENERATION.search(name)
    if match is None:
        return ""
    if match.group(3):
        return f"sm{match.group(3)}"
    return match.group(1) or match.group(2).replace("_", "")


def _instruction(name: str) -> str:
    for pattern, meaning in INSTRUCTIONS:
        if match := pattern.search(name):
            return meaning or match.group(1)
    return ""


def _transpose(name: str) -> str:
    """Layouts of the two inputs; nvjet and CUTLASS 3 name the output's as well, which is left out."""
    found = None
    for found in LAYOUT.finditer(name):
        if found.group(2):
            break
    if found is None:
        return ""
    return (found.group(1) or found.group(2)[:2]).lower()


def _cluster(name: str) -> tuple[int, ...]:
    match = CLUSTER_3X.search(name) if "cutlass3x" in name else None
    if match:
        return tuple(int(size) for size in match.groups())
    tuples = [tuple(int(size) for size in found.groups()) for found in CUTE_TUPLE.finditer(name)]
    return tuples[0] if len(tuples) > 1 else ()


def _cute_tile(name: str) -> tuple[int, ...]:
    """Tile of a CUTLASS 3 template: its second tuple of three, after the cluster."""
    tuples = [tuple(int(size) for size in found.groups()) for found in CUTE_TUPLE.finditer(name)]
    return tuples[1] if len(tuples) > 1 else ()


def _sizes(text: str | None) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split("x")) if text else ()
