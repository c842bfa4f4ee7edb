"""The simulated library's matrix kernels: tiles, splits and layouts of GEMM and convolution."""

from math import ceil, exp, gcd, inf, log2
from typing import Final

import numpy as np

from collector.devices.protocols import PreparedKernel
from collector.errors import RunnerError
from collector.simulated.cache import replayed_traffic
from collector.simulated.plan import KernelPlan, Tile, library, stable_stream
from collector.simulated.profile import BoardProfile
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, IntArray
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator, conv_output_size
from microbench.kernel import WARP_LANES
from microbench.sizing import resident_blocks

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


@frozen
class Product:
    """A matrix product for the library of a board: `batch` of m × n × k, and the bytes of its operands."""

    operator: Operator
    profile: BoardProfile
    batch: int
    m: int
    n: int
    k: int
    useful_flop: float
    left_bytes: float
    right_bytes: float
    output_element_bytes: float
    transpose: str = ""

    @property
    def element_bytes(self) -> float:
        """Bytes of an element of the operands."""
        return BYTES_PER_ELEMENT[self.operator.precision]

    @property
    def outputs(self) -> int:
        """Elements of the result."""
        return self.batch * self.m * self.n

    @property
    def on_cuda_cores(self) -> bool:
        """Whether lanes multiply, without matrix units."""
        return _on_cuda_cores(self.operator)

    @property
    def kernels(self) -> str:
        """The set of kernels in the library's tables."""
        return "cuda" if self.on_cuda_cores else self.profile.library.generation

    @property
    def in_clusters(self) -> bool:
        """Whether kernels are persistent, and clusters of their blocks load panels together."""
        return self.kernels == "hopper"

    @property
    def multicast(self) -> float:
        """Remaining share of the tile traffic: clusters load a panel once for two blocks."""
        return 0.62 if self.in_clusters else 1.0

    def step(self, tile: Tile) -> int:
        """Reduction step of a kernel in elements: tensor kernels keep its bytes constant."""
        return tile.tile_k if self.on_cuda_cores else max(8, int(tile.tile_k * 2 / self.element_bytes))

    def step_clocks(self, tile: Tile) -> float:
        """Least clocks of a reduction step."""
        barrier, per_element = library().step_clocks[self.kernels]
        return barrier + per_element * self.step(tile) * (1.0 if self.on_cuda_cores else self.element_bytes / 2.0)

    def shared_bytes(self, tile: Tile) -> int:
        """Shared memory of a block."""
        return int(tile.stages * (tile.tile_m + tile.tile_n) * self.step(tile) * self.element_bytes)

    def resident(self, tile: Tile) -> int:
        """Blocks of a kernel that an SM holds."""
        return resident_blocks(self.profile.spec, tile.warps * WARP_LANES, tile.registers, self.shared_bytes(tile))

    def unit_clocks(self, tile: Tile) -> float:
        """Clocks of an SM for one reduction element of the whole tile."""
        kernels, area = self.profile.library, tile.tile_m * tile.tile_n
        rate = self.profile.spec.matrix_flop_per_clock(self.operator.precision, self.on_cuda_cores)
        # instructions beside the multiply-adds of a CUDA-core product; they take issue slots and almost no energy
        efficiency = kernels.cuda_efficiency / (1.0 + 0.10) if self.on_cuda_cores else kernels.tensor_efficiency
        # tiles of few elements lose throughput, on CUDA and on tensor cores
        efficiency *= min(1.0, area / 16384.0) ** (0.10 if self.on_cuda_cores else 0.06)
        # share of matrix throughput that index arithmetic of an implicit GEMM leaves
        clocks: float = 2.0 * area / (rate * efficiency * (0.92 if self.operator.family == "conv" else 1.0))
        return clocks + self.narrow_clocks(tile)

    def narrow_clocks(self, tile: Tile) -> float:
        """Clocks of an SM for one reduction element's loads of less than 16 bytes a lane, 0 where all rows are multiples of 16 bytes.

        Such a load of a warp touches eight lines of a matrix whose rows follow the reduction, and four of others; a clock each.
        """
        if self.on_cuda_cores or self.operator.family != "gemm" or self.element_bytes < 2.0:
            return 0.0
        right_along, left_along = self.transpose[0] == "t", self.transpose[1] == "n"
        rows = (self.n, self.k if left_along else self.m, self.k if right_along else self.n)
        access = gcd(16, *(int(row * self.element_bytes) for row in rows))
        lines = min(tile.tile_m, self.m) * (8 if left_along else 4) + min(tile.tile_n, self.n) * (8 if right_along else 4)
        return lines * self.element_bytes / access / WARP_LANES if access < 16 else 0.0


def _on_cuda_cores(operator: Operator) -> bool:
    return operator.cuda_cores or operator.precision == "fp32"


def matrix_plan(operator: Operator, profile: BoardProfile, layout: str) -> KernelPlan:
    """The kernel for a dense convolution, or a GEMM in a layout of `microbench.layouts`.

    Raises RunnerError for a precision without a kernel.

    A layout has a kernel of its own, with its own name and so its own switching activity, but no time or traffic of its own except for
    narrow loads: else the layout changes the time of real kernels by amounts without a rule that could be planted.
    """
    gpu = profile.spec
    rates = gpu.cuda_flop_per_clock if _on_cuda_cores(operator) else gpu.tensor_flop_per_clock
    if operator.precision not in rates:
        known = ", ".join(sorted({*gpu.tensor_flop_per_clock, "fp32"}))
        raise RunnerError(f"{operator.family} in {operator.precision}: no such kernel on {gpu.name}; precisions: {known}")
    product = _gemm(operator, profile, layout) if operator.family == "gemm" else _convolution(operator, profile)
    return _lay_out(product, *_choose(product))


def _gemm(operator: Operator, profile: BoardProfile, layout: str) -> Product:
    batch, m, n, k = (int(value) for value in operator.shape)
    width = BYTES_PER_ELEMENT[operator.precision]
    return Product(
        operator=operator,
        profile=profile,
        batch=batch,
        m=m,
        n=n,
        k=k,
        useful_flop=2.0 * batch * m * n * k,
        left_bytes=batch * m * k * width,
        right_bytes=batch * n * k * width,
        output_element_bytes=BYTES_PER_ELEMENT[operator.precision_out] if operator.precision_out else max(width, 2.0),
        transpose=layout,
    )


def _convolution(operator: Operator, profile: BoardProfile) -> Product:
    batch, channels, height, width_px, filters, kernel_h, kernel_w, stride, _, groups = (int(value) for value in operator.shape)
    out_h, out_w = map(int, conv_output_size(operator))
    own_channels = max(1, channels // groups)
    first_layer = own_channels <= FIRST_LAYER_GRANULE and stride == 2
    granule = 1 if _on_cuda_cores(operator) else FIRST_LAYER_GRANULE if first_layer else 8
    width, weights = BYTES_PER_ELEMENT[operator.precision], filters * own_channels * kernel_h * kernel_w
    return Product(
        operator=operator,
        profile=profile,
        batch=groups,
        m=batch * out_h * out_w,
        n=max(1, filters // groups),
        k=-(-own_channels // granule) * granule * kernel_h * kernel_w,
        useful_flop=2.0 * batch * out_h * out_w * weights,
        left_bytes=batch * channels * height * width_px * width,
        right_bytes=weights * width,
        output_element_bytes=width,
    )


def _choose(product: Product) -> tuple[Tile, int]:
    """The library's choice of kernel and split: cheapest by its own rough costs, whose small errors are similar for similar shapes."""
    operator, profile, gpu = product.operator, product.profile, product.profile.spec
    kernels = library().tiles[product.kernels]
    similar = tuple(int(2.0 * log2(value)) for value in (product.batch, product.m, product.n, product.k))
    errors = stable_stream("tile", profile.gpu, operator.precision, similar).standard_normal(len(kernels) * len(SPLITS)).tolist()
    liking = stable_stream("kernel", profile.gpu, operator.precision, operator.operator).standard_normal(len(kernels)).tolist()
    best, choice = inf, None
    for i, tile in enumerate(kernels):
        resident = product.resident(tile)
        if not resident:
            continue
        tiles = product.batch * ceil(product.m / tile.tile_m) * ceil(product.n / tile.tile_n)
        slots, unit, step = resident * gpu.num_sms, product.unit_clocks(tile), product.step(tile)
        loaded = min(tile.tile_m, product.m) + min(tile.tile_n, product.n)
        # share of an SM's port that the library assumes when it compares tiles
        port = loaded * product.element_bytes * product.multicast / (0.72 * profile.memory.path_bytes_per_clock)
        for j, split in enumerate(SPLITS if product.batch == 1 else SPLITS[:1]):
            # reductions are not split below this length [element]
            if split > 1 and (product.k / split < 128 or tiles * split > 2 * slots):
                continue
            steps = ceil(product.k / (split * step))
            side_by_side = min(resident, ceil(tiles * split / gpu.num_sms))
            work = side_by_side * steps * step * (max(unit, port) + 0.2 * min(unit, port))
            loop = max(work, steps * product.step_clocks(tile))
            cost = ceil(tiles * split / slots) * (loop + profile.schedule.block_start_clocks + 1000.0)
            if split > 1:
                cost += SPLIT_CLOCKS + product.outputs * split * 2 * PARTIAL_BYTES / gpu.l2_bytes_per_clock
            cost *= exp(profile.library.choice_spread * errors[i * len(SPLITS) + j] + profile.library.liking_spread * liking[i])
            if cost < best:
                best, choice = cost, (tile, split)
    if choice is None:
        raise RunnerError(f"no matrix kernel of the library fits on an SM of {gpu.name}")
    return choice


def _lay_out(product: Product, tile: Tile, split: int) -> KernelPlan:
    """The plan of a kernel: the product cut into tiles and shares of its reduction."""
    rows, columns = ceil(product.m / tile.tile_m), ceil(product.n / tile.tile_n)
    step, width, area = product.step(tile), product.element_bytes, tile.tile_m * tile.tile_n
    steps = ceil(product.k / (split * step))
    blocks = product.batch * rows * columns * split
    loaded = (product.m / rows + product.n / columns) * min(steps * step, product.k / split) * width * product.multicast
    fragments = area * (1.0 / tile.warp_m + 1.0 / tile.warp_n)
    operand_bytes, output_bytes = product.left_bytes + product.right_bytes, product.outputs * product.output_element_bytes
    resident, parts = product.resident(tile), product.batch * split
    slots = resident * product.profile.spec.num_sms
    return KernelPlan(
        kernel=PreparedKernel(
            operator=product.operator,
            l2_state="warm",
            library="cudnn" if product.operator.family == "conv" else "cublas",
            kernel_name=_kernel_name(product, tile),
            grid=(rows, columns, parts),
            block=(tile.warps * WARP_LANES, 1, 1),
            registers_per_thread=tile.registers,
            shared_bytes_per_block=product.shared_bytes(tile),
            blocks_per_sm=resident,
            tile_m=tile.tile_m,
            tile_n=tile.tile_n,
            tile_k=step,
            stages=tile.stages,
            split_k=split,
            transpose=product.transpose,
            working_set_bytes=int(operand_bytes + output_bytes),
        ),
        on_cuda_cores=product.on_cuda_cores,
        product_flop=product.useful_flop,
        padded_flop=max(0.0, 2.0 * blocks * area * steps * step - product.useful_flop),
        lane_ops=OUTPUT_OPS * product.outputs * split,
        shared_bytes=(tile.tile_m + tile.tile_n + fragments) * steps * step * width * blocks,
        traffic=replayed_traffic(
            product.profile,
            panels=(
                (lambda block: _panel(block, rows, columns)[0], product.left_bytes / (parts * rows)),
                (lambda block: _panel(block, rows, columns)[1], product.right_bytes / (parts * columns)),
            ),
            compulsory_bytes=operand_bytes,
            loaded_bytes=loaded * blocks,
            write_bytes=output_bytes,
            blocks=blocks,
            slots=slots,
        ),
        product_clocks=product.unit_clocks(tile) * steps * step,
        steps=steps,
        step_clocks=product.step_clocks(tile),
        load_bytes=loaded,
        store_bytes=product.m * product.n / (rows * columns) * (product.output_element_bytes if split == 1 else PARTIAL_BYTES),
        in_flight_bytes=min(loaded, max(1, tile.stages - 1) * loaded / steps),
        asynchronous=tile.stages > 2,
        epilogue_clocks=250.0 + 2.0 * area / (tile.warps * WARP_LANES),
        row_pitch_bytes=product.k * width,
        spread_tail=product.in_clusters,
        follow_up_clocks=SPLIT_CLOCKS if split > 1 else 0.0,
        follow_up_bytes=product.outputs * split * PARTIAL_BYTES + output_bytes if split > 1 else 0.0,
    )


def _panel(block: IntArray, rows: int, columns: int) -> tuple[IntArray, IntArray]:
    """Left and right panel of each block: batch by batch, share by share, in strips of tile columns."""
    part, inside = np.divmod(block, rows * columns)
    strip, rest = np.divmod(inside, rows * SWIZZLE)
    strip_width = np.minimum(SWIZZLE, columns - strip * SWIZZLE)
    row, column = np.divmod(rest, strip_width)
    return part * rows + row, part * columns + strip * SWIZZLE + column


def _kernel_name(product: Product, tile: Tile) -> str:
    """A name in the style of the vendor's libraries."""
    names, kind = library().matrix_names, product.operator.precision
    general = "conv" if product.operator.family == "conv" else product.profile.library.generation
    pattern = names.get(f"{general} {'cuda' if product.on_cuda_cores else kind}", names[general])
    size, layout = f"{tile.tile_m}x{tile.tile_n}", product.transpose
    return pattern.format(kind=kind, size=size, step=product.step(tile), stages=tile.stages, layout=layout, batch=product.batch)
