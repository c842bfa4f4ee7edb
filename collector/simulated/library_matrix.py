"""The simulated library's matrix kernels: tiles, splits and layouts of GEMM and convolution."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.errors import RunnerError
from collector.simulated.cache import replayed_blocks, replayed_traffic
from collector.simulated.plan import BlockDemand, KernelPlan, LaunchEvents, Tile, Traffic, library, resident_blocks, stable_stream
from collector.simulated.profile import BoardProfile
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, IntArray
from estimator.vocabulary.workload import Operator

SPLITS: Final = (1, 2, 3, 4, 6, 8, 16)

SWIZZLE: Final = 8
"""Number of tile columns that blocks walk through side by side, so that a wave shares panels."""

SPLIT_CLOCKS, PARTIAL_BYTES = 2200.0, 4.0
"""Clocks for starting the reduction of split results [SM clock], and the bytes of one result."""


OUTPUT_OPS: Final = 3.0
"""Lane instructions of one output element: scale, convert, store."""


FIRST_LAYER_GRANULE: Final = 4
"""Multiple to which channels are padded for the matrix units.

The few channels of an image are padded to 4 if the stride is 2, all others to 8 (NVIDIA,
Convolutional Layers User's Guide).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product for the library: `batch` of m × n × k, and the bytes of its operands."""

    batch: int
    m: int
    n: int
    k: int
    useful_flop: float
    left_bytes: float
    right_bytes: float
    output_bytes: float
    element_bytes: float
    output_element_bytes: float
    on_cuda_cores: bool
    convolution: bool
    transpose: str


def product_plan(operator: Operator, profile: BoardProfile, gpu: GpuSpec, layout: str) -> KernelPlan:
    """The kernel for a GEMM in a layout of `microbench.layouts`.  Raises RunnerError for a precision without a kernel.

    A layout has a kernel of its own, with its own name and so its own switching activity, but no time or traffic of its own: the
    layout of inputs changes the time of real kernels by amounts without a rule that could be planted.
    """
    return _matrix_plan(_gemm(operator, layout), operator, profile, gpu)


def convolution_plan(operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    """The kernel for a dense convolution.  Raises RunnerError for a precision without a kernel."""
    return _matrix_plan(_convolution(operator), operator, profile, gpu)


def _matrix_plan(product: Product, operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    rates = gpu.cuda_flop_per_clock if product.on_cuda_cores else gpu.tensor_flop_per_clock
    if operator.precision not in rates:
        known = ", ".join(sorted({*gpu.tensor_flop_per_clock, "fp32"}))
        raise RunnerError(f"{operator.family} in {operator.precision}: no such kernel on {gpu.name}; precisions: {known}")
    tile, split = _choose(product, operator, profile, gpu)
    return _lay_out(product, operator, profile, gpu, tile, split)


def _gemm(operator: Operator, layout: str) -> Product:
    batch, m, n, k = (int(value) for value in operator.shape)
    width = BYTES_PER_ELEMENT[operator.precision]
    out_width = BYTES_PER_ELEMENT[operator.precision_out] if operator.precision_out else max(width, 2.0)
    return Product(
        batch=batch,
        m=m,
        n=n,
        k=k,
        useful_flop=2.0 * batch * m * n * k,
        left_bytes=batch * m * k * width,
        right_bytes=batch * n * k * width,
        output_bytes=batch * m * n * out_width,
        element_bytes=width,
        output_element_bytes=out_width,
        on_cuda_cores=operator.cuda_cores or operator.precision == "fp32",
        convolution=False,
        transpose=layout,
    )


def _convolution(operator: Operator) -> Product:
    batch, channels, height, width_px, filters, kernel_h, kernel_w, stride, padding, groups = (int(value) for value in operator.shape)
    out_h = (height + 2 * padding - kernel_h) // stride + 1
    out_w = (width_px + 2 * padding - kernel_w) // stride + 1
    on_cuda_cores = operator.cuda_cores or operator.precision == "fp32"
    own_channels = max(1, channels // groups)
    first_layer = own_channels <= FIRST_LAYER_GRANULE and stride == 2
    granule = 1 if on_cuda_cores else FIRST_LAYER_GRANULE if first_layer else 8
    padded = -(-own_channels // granule) * granule
    width = BYTES_PER_ELEMENT[operator.precision]
    return Product(
        batch=groups,
        m=batch * out_h * out_w,
        n=max(1, filters // groups),
        k=padded * kernel_h * kernel_w,
        useful_flop=2.0 * batch * out_h * out_w * filters * own_channels * kernel_h * kernel_w,
        left_bytes=batch * channels * height * width_px * width,
        right_bytes=filters * own_channels * kernel_h * kernel_w * width,
        output_bytes=batch * out_h * out_w * filters * width,
        element_bytes=width,
        output_element_bytes=width,
        on_cuda_cores=on_cuda_cores,
        convolution=True,
        transpose="",
    )


def _step_length(tile: Tile, product: Product) -> int:
    """Reduction step of a kernel in elements: tensor kernels keep its bytes constant."""
    return tile.tile_k if product.on_cuda_cores else max(8, int(tile.tile_k * 2 / product.element_bytes))


def _shared_bytes(tile: Tile, product: Product) -> int:
    return int(tile.stages * (tile.tile_m + tile.tile_n) * _step_length(tile, product) * product.element_bytes)


def _unit_clocks(tile: Tile, product: Product, operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> float:
    """Clocks of an SM for one reduction element of the whole tile."""
    library = profile.library
    area = tile.tile_m * tile.tile_n
    rate = gpu.matrix_flop_per_clock(operator.precision, product.on_cuda_cores)
    # instructions beside the multiply-adds of a CUDA-core product; they take issue slots and almost no energy
    efficiency = library.cuda_efficiency / (1.0 + 0.10) if product.on_cuda_cores else library.tensor_efficiency
    # tiles of few elements lose throughput, on CUDA and on tensor cores
    efficiency *= min(1.0, area / 16384.0) ** (0.10 if product.on_cuda_cores else 0.06)
    # share of matrix throughput that index arithmetic of an implicit GEMM leaves
    clocks: float = 2.0 * area / (rate * efficiency * (0.92 if product.convolution else 1.0))
    return clocks


def _choose(product: Product, operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> tuple[Tile, int]:
    """The library's choice: cheapest by its own rough costs, whose small errors are similar for similar shapes."""
    family = "cuda" if product.on_cuda_cores else profile.library.generation
    kernels, (barrier, per_element) = library().tiles[family], library().step_clocks[family]
    similar = tuple(int(2.0 * math.log2(value)) for value in (product.batch, product.m, product.n, product.k))
    errors = stable_stream("tile", profile.gpu, operator.precision, similar).standard_normal(len(kernels) * len(SPLITS)).tolist()
    liking = stable_stream("kernel", profile.gpu, operator.precision, operator.operator).standard_normal(len(kernels)).tolist()
    splits = SPLITS if product.batch == 1 else SPLITS[:1]
    best, choice = math.inf, None
    multicast = _multicast(product, profile)
    for i, tile in enumerate(kernels):
        resident = resident_blocks(gpu, tile.warps * 32, tile.registers, _shared_bytes(tile, product))
        if not resident:
            continue
        tiles = product.batch * math.ceil(product.m / tile.tile_m) * math.ceil(product.n / tile.tile_n)
        slots = resident * gpu.num_sms
        unit = _unit_clocks(tile, product, operator, profile, gpu)
        loaded = min(tile.tile_m, product.m) + min(tile.tile_n, product.n)
        # share of an SM's port that the library assumes when it compares tiles
        port = loaded * product.element_bytes * multicast / (0.72 * profile.memory.path_bytes_per_clock)
        step = _step_length(tile, product)
        for j, split in enumerate(splits):
            # reductions are not split below this length [element]
            if split > 1 and (product.k / split < 128 or tiles * split > 2 * slots):
                continue
            length = math.ceil(product.k / (split * step)) * step
            side_by_side = min(resident, math.ceil(tiles * split / gpu.num_sms))
            waves = math.ceil(tiles * split / slots)
            work = side_by_side * length * (max(unit, port) + 0.2 * min(unit, port))
            loop = max(work, length / step * (barrier + per_element * step))
            cost = waves * (loop + profile.schedule.block_start_clocks + 1000.0)
            if split > 1:
                cost += SPLIT_CLOCKS + product.m * product.n * product.batch * split * 2 * PARTIAL_BYTES / gpu.l2_bytes_per_clock
            cost *= math.exp(profile.library.choice_spread * errors[i * len(SPLITS) + j] + profile.library.liking_spread * liking[i])
            if cost < best:
                best, choice = cost, (tile, split)
    if choice is None:
        raise RunnerError(f"no matrix kernel of the library fits on an SM of {gpu.name}")
    return choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A product cut into blocks: counts, and the bytes that one block loads, stores and passes through shared memory."""

    rows: int
    columns: int
    blocks: int
    split: int
    step: int
    steps: int
    resident: int
    load_bytes: float
    store_bytes: float
    shared_bytes: float
    reduced_bytes: float

    @property
    def length(self) -> int:
        """Reduction length of a block, padding included."""
        return self.steps * self.step


def _cut(product: Product, profile: BoardProfile, gpu: GpuSpec, tile: Tile, split: int) -> Layout:
    """The product cut into tiles and shares of its reduction."""
    rows, columns = math.ceil(product.m / tile.tile_m), math.ceil(product.n / tile.tile_n)
    step = _step_length(tile, product)
    steps = math.ceil(product.k / (split * step))
    width = product.element_bytes
    area = tile.tile_m * tile.tile_n
    loaded = (product.m / rows + product.n / columns) * min(steps * step, product.k / split) * width
    outputs = product.batch * product.m * product.n
    fragments = area * (1.0 / tile.warp_m + 1.0 / tile.warp_n)
    return Layout(
        rows=rows,
        columns=columns,
        blocks=product.batch * rows * columns * split,
        split=split,
        step=step,
        steps=steps,
        resident=resident_blocks(gpu, tile.warps * 32, tile.registers, _shared_bytes(tile, product)),
        load_bytes=loaded * _multicast(product, profile),
        store_bytes=product.m * product.n / (rows * columns) * (product.output_element_bytes if split == 1 else PARTIAL_BYTES),
        shared_bytes=(tile.tile_m + tile.tile_n + fragments) * steps * step * width,
        reduced_bytes=outputs * (split * PARTIAL_BYTES + product.output_element_bytes) if split > 1 else 0.0,
    )


def _multicast(product: Product, profile: BoardProfile) -> float:
    """Remaining share of the tile traffic if clusters load panels together."""
    # hopper clusters load a panel once for two blocks: the remaining share of the traffic from the L2
    return 0.62 if profile.library.generation == "hopper" and not product.on_cuda_cores else 1.0


def _lay_out(product: Product, operator: Operator, profile: BoardProfile, gpu: GpuSpec, tile: Tile, split: int) -> KernelPlan:
    """The plan of the chosen kernel."""
    layout = _cut(product, profile, gpu, tile, split)
    return KernelPlan(
        kernel_name=_kernel_name(operator, product, profile, tile, layout.step),
        library="cudnn" if product.convolution else "cublas",
        grid=(layout.rows, layout.columns, product.batch * split),
        threads=tile.warps * 32,
        registers=tile.registers,
        shared_bytes_per_block=_shared_bytes(tile, product),
        blocks_per_sm=layout.resident,
        blocks=layout.blocks,
        demand=_demand(product, operator, profile, gpu, tile, layout),
        events=_events(product, tile, layout),
        traffic=_traffic(product, profile, gpu, layout),
        working_set_bytes=product.left_bytes + product.right_bytes + product.output_bytes,
        row_pitch_bytes=product.k * product.element_bytes,
        tile_m=tile.tile_m,
        tile_n=tile.tile_n,
        tile_k=layout.step,
        stages=tile.stages,
        split_k=split,
        transpose=product.transpose,
        precision=operator.precision,
        spread_tail=profile.library.generation == "hopper" and not product.on_cuda_cores,
        follow_up_clocks=SPLIT_CLOCKS if split > 1 else 0.0,
        follow_up_bytes=layout.reduced_bytes,
    )


def _demand(product: Product, operator: Operator, profile: BoardProfile, gpu: GpuSpec, tile: Tile, layout: Layout) -> BlockDemand:
    """Demand of one block."""
    area = tile.tile_m * tile.tile_n
    unit = _unit_clocks(tile, product, operator, profile, gpu) * layout.length
    barrier, per_element = library().step_clocks["cuda" if product.on_cuda_cores else profile.library.generation]
    bytes_alike = layout.step * (1.0 if product.on_cuda_cores else product.element_bytes / 2.0)
    return BlockDemand(
        tensor_clocks=0.0 if product.on_cuda_cores else unit,
        lane_clocks=(unit if product.on_cuda_cores else 0.0) + OUTPUT_OPS * area / gpu.fp32_lanes,
        shared_clocks=layout.shared_bytes / gpu.shared_bytes_per_clock,
        steps=layout.steps,
        step_clocks=barrier + per_element * bytes_alike,
        load_bytes=layout.load_bytes,
        store_bytes=layout.store_bytes,
        in_flight_bytes=min(layout.load_bytes, max(1, tile.stages - 1) * layout.load_bytes / layout.steps),
        asynchronous=tile.stages > 2,
        epilogue_clocks=250.0 + 2.0 * area / (tile.warps * 32),
    )


def _events(product: Product, tile: Tile, layout: Layout) -> LaunchEvents:
    """Events of a launch in total."""
    ops = OUTPUT_OPS * product.batch * product.m * product.n * layout.split
    moved = (layout.load_bytes + layout.store_bytes) * layout.blocks + layout.reduced_bytes
    shared = layout.shared_bytes * layout.blocks
    if product.on_cuda_cores:
        return LaunchEvents(cuda_ops=ops + product.useful_flop / 2.0, shared_bytes=shared, l2_bytes=moved)
    issued = 2.0 * layout.blocks * tile.tile_m * tile.tile_n * layout.length
    padded = max(0.0, issued - product.useful_flop)
    return LaunchEvents(tensor_flop=product.useful_flop, padded_flop=padded, cuda_ops=ops, shared_bytes=shared, l2_bytes=moved)


def _traffic(product: Product, profile: BoardProfile, gpu: GpuSpec, layout: Layout) -> Traffic:
    """DRAM bytes of a launch, from a replay of its panels."""
    slots = layout.resident * gpu.num_sms
    parts = product.batch * layout.split
    left, right = _panels(layout, replayed_blocks(layout.blocks, slots))
    return replayed_traffic(
        profile.memory,
        gpu,
        panels=(
            (left, product.left_bytes / (parts * layout.rows)),
            (right, product.right_bytes / (parts * layout.columns)),
        ),
        compulsory_bytes=product.left_bytes + product.right_bytes,
        loaded_bytes=layout.load_bytes * layout.blocks,
        write_bytes=product.output_bytes,
        blocks=layout.blocks,
        slots=slots,
    )


def _panels(layout: Layout, count: int) -> tuple[IntArray, IntArray]:
    """Left and right panel of the first `count` blocks: batch by batch, share by share, in strips of tile columns."""
    index = np.arange(count)
    part, inside = np.divmod(index, layout.rows * layout.columns)
    strip, rest = np.divmod(inside, layout.rows * SWIZZLE)
    strip_width = np.minimum(SWIZZLE, layout.columns - strip * SWIZZLE)
    row, column = np.divmod(rest, strip_width)
    return part * layout.rows + row, part * layout.columns + strip * SWIZZLE + column


def _kernel_name(operator: Operator, product: Product, profile: BoardProfile, tile: Tile, step: int) -> str:
    """A name in the style of the vendor's libraries."""
    size = f"{tile.tile_m}x{tile.tile_n}"
    generation = profile.library.generation
    if product.convolution:
        kind = "f32f32_f32f32_f32" if product.on_cuda_cores else f"{operator.precision}{operator.precision}_{operator.precision}f32_f32"
        layout = f"tilesize{size}x{step}_stage{tile.stages}_warpsize2x2x1_g{product.batch}_tensor16x8x16_kernel"
        return f"sm80_xmma_fprop_implicit_gemm_{kind}_nhwckrsc_nhwc_{layout}"
    if product.on_cuda_cores:
        return f"{'volta' if generation == 'volta' else 'ampere'}_sgemm_{size}_{product.transpose}"
    if generation == "hopper":
        return f"nvjet_{operator.precision}_{size}_{step}x{tile.stages}_{product.transpose}"
    if generation == "volta":
        return f"volta_{operator.precision}_s884gemm_{operator.precision}_{size}_ldg8_f2f_{product.transpose}"
    shape = "1688" if operator.precision == "tf32" else "16816"
    return f"ampere_{operator.precision}_s{shape}gemm_{operator.precision}_{size}_ldg8_f2f_stages_{step}x{tile.stages}_{product.transpose}"
