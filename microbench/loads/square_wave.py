"""The load for identifying a power sensor: alternates a chain of multiply-adds on a share of the SMs with idle time.

Linear regression over a few runs gives the duration of a number of iterations, as in Yang et al., "Part-time power
measurements" (arXiv 2312.02741): duration = intercept + slope · iterations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.vocabulary.gpu import GpuSpec
from microbench.errors import LaunchError
from microbench.families import kernel_named
from microbench.kernel import Kernel, Launch
from microbench.loads.generated import GeneratedLoad, architecture_of, module_load
from microbench.loads.launch import MOST_ITERATIONS
from microbench.toolchain.compile import CompiledModule, Toolchain, compile_kernels
from microbench.toolchain.inspect import check_body

CHAIN: Final = "ffma_k8_u64"
"""The kernel of the high level: multiply-adds on all lanes, no memory."""

BLOCKS_PER_SM: Final = 4
"""Blocks of 256 threads that saturate the fp32 pipes: 8 warps a scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationLine:
    """duration_s = intercept_s + slope_s · iterations, with the standard deviation of the residuals."""

    intercept_s: float
    slope_s: float
    residual_s: float

    def iterations(self, duration_s: float) -> int:
        """Iterations with this duration, at least 1.  Raises LaunchError for a duration that the kernel's counter cannot hold."""
        count = max(1, round((duration_s - self.intercept_s) / self.slope_s))
        if count > MOST_ITERATIONS:
            raise LaunchError(f"a load of {duration_s} s needs {count} iterations, more than a 32-bit counter holds; repeat a shorter one")
        return count


def fit_duration(iterations: Sequence[int], duration_s: Sequence[float]) -> DurationLine:
    """The least-squares line through measured runs, each weighted by 1/duration: the sensor needs relative accuracy.

    Raises LaunchError for runs that do not get longer with more iterations.
    """
    count, time = np.asarray(iterations, dtype=np.float64), np.asarray(duration_s, dtype=np.float64)
    design = np.stack([np.ones_like(count), count], axis=1) / time[:, None]
    (intercept, slope), *_ = np.linalg.lstsq(design, np.ones_like(time), rcond=None)
    if not slope > 0.0:
        raise LaunchError(
            f"more iterations do not last longer (slope {slope:.3g} s); the clock is not steady or the kernel is not this one"
        )
    residual = time - (intercept + slope * count)
    spread = math.sqrt(float(residual @ residual) / max(1, time.size - 2))
    return DurationLine(intercept_s=float(intercept), slope_s=float(slope), residual_s=spread)


def wave_launch(gpu: GpuSpec, iterations: int, sm_share: float) -> Launch:
    """The high level on a share of the SMs, at least one."""
    sms = max(1, round(sm_share * gpu.num_sms))
    whole = sms == gpu.num_sms
    blocks = sms * BLOCKS_PER_SM if whole else sms
    threads = 256 if whole else 256 * BLOCKS_PER_SM
    return Launch(mode="full" if whole else "sm_sweep", grid=(blocks, 1, 1), block=(threads, 1, 1), iterations=iterations)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveCode:
    """The chain's machine code for a GPU, assembled and inspected; `load` is one launch of it."""

    gpu: GpuSpec
    kernel: Kernel
    module: CompiledModule

    def load(self, iterations: int, sm_share: float) -> GeneratedLoad:
        """The high level for a number of turns of the chain's loop.  Raises LaunchError for an impossible launch."""
        load = module_load(self.kernel, wave_launch(self.gpu, iterations, sm_share), self.module, self.gpu)
        if not load.blocks_per_sm:
            raise LaunchError(f"{self.kernel.name}: a block of {load.launch.threads_per_block} threads does not fit {self.gpu.name}")
        return load


def wave_code(gpu: GpuSpec, toolchain: Toolchain) -> WaveCode:
    """The chain for a GPU.

    Raises UnsupportedError for a GPU without a target, CompileError if the assembler fails, InspectionError
    if the machine code is not a chain of multiply-adds.
    """
    kernel = kernel_named(CHAIN)
    module = compile_kernels([kernel], architecture_of(gpu), "O3", toolchain)
    check_body(kernel, module.entries[kernel.name], "O3")
    return WaveCode(gpu=gpu, kernel=kernel, module=module)
