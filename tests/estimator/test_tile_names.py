"""Kernel names of cuBLAS, CUTLASS, XMMA and nvjet kernels, as profilers report them."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.model.tile_names import named_tile, tile_from_name


@pytest.mark.parametrize(
    "name, first, second, along_m, step, stages",
    [
        ("ampere_sgemm_32x32_sliced1x4_tn", 32, 32, False, 0, 0),
        ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", 128, 64, False, 0, 0),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_nn_align2>", 32, 32, True, 32, 1),
        ("sm80_xmma_fprop_implicit_gemm_bf16_nhwc_tilesize128x128x64_stage3_warpsize2x2x1_g1_tensor16x8x16_kernel", 128, 128, True, 64, 3),
        ("nvjet_bf16_64x256_64x4_tn", 64, 256, False, 64, 4),
    ],
)
def test_a_name_tells_tile_step_and_stages(name, first, second, along_m, step, stages):
    tile = named_tile(name)
    assert (tile.first, tile.second, tile.first_along_m) == (first, second, along_m)
    assert (tile.tile_k, tile.stages) == (step, stages)


@pytest.mark.parametrize(
    "name", ["", "void gemv2T_kernel_val<int>", "splitKreduce_kernel<32, 16, int, float>", "vectorized_elementwise_kernel<4, float>"]
)
def test_a_name_without_a_tile_says_nothing(name):
    assert named_tile(name) is None
    assert math.isnan(tile_from_name(name, 1, 64, 64, (1, 1, 1)).tile_m)


def test_a_grid_that_cannot_cover_the_product_is_another_kernels():
    assert math.isnan(tile_from_name("ampere_sgemm_128x128_nn", 1, 4096, 4096, (2, 2, 1)).tile_m)


def test_a_swizzled_grid_is_rounded_up():
    tile = tile_from_name("cutlass_80_simt_sgemm_128x64_8x5_tn_align1", 1, 640, 640, (48, 2, 1))  # 50 tiles, 96 blocks
    assert (tile.tile_m, tile.tile_n, tile.split_k) == (128, 64, 1)


@given(
    st.sampled_from([(32, 32), (128, 64), (64, 128), (256, 128)]),
    st.integers(1, 8192),
    st.integers(1, 8192),
    st.integers(1, 64),
    st.integers(1, 32),
)
def test_the_launch_of_a_tile_gives_it_back(tile, m, n, batch, split):
    first, second = tile
    grid = (float(math.ceil(n / first)), float(math.ceil(m / second)), float(batch * split))
    found = tile_from_name(f"ampere_sgemm_{first}x{second}_tn", batch, m, n, grid)
    covered = math.ceil(m / found.tile_m) * math.ceil(n / found.tile_n)
    assert covered == grid[0] * grid[1]
    assert found.split_k == split


def test_published_names_and_grids_agree(shared_data):
    """Every fourth fp32 kernel of the published tables: its tile, times its grid, covers the product exactly."""
    for file in ("bmm_train", "linear_train", "linear_larger_shapes"):
        table = pd.read_csv(shared_data / "neusight" / f"{file}.csv")
        for row in table[::4].itertuples():
            tile = tile_from_name(row.kernel_name, row.batch, row.m, row.n, (row.grid_x, row.grid_y, row.grid_z))
            assert math.ceil(row.m / tile.tile_m) * math.ceil(row.n / tile.tile_n) == row.grid_x * row.grid_y
            assert tile.split_k >= 1
