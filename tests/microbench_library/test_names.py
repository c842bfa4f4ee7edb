"""Tiles in the names of matrix kernels: public names of every form; no text upsets the reader."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.model.tile_names import NO_TILE, named_tile, tile_from_name


@pytest.mark.parametrize(
    "name, tile",
    [
        # First and second number, reduction step, stages.  Names: NVIDIA/cutlass issue 1025, sgl-project/sglang pull 22353,
        # karpathy/nanochat pull 105, and public profiles.
        ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn", (64, 64, 64, 6)),
        ("cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_ntn_align8", (128, 128, 64, 0)),
        ("nvjet_tst_192x16_64x8_2x2_2cta_h_bz_TNT", (192, 16, 64, 8)),
        ("nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN", (64, 64, 128, 3)),
    ],
)
def test_a_public_name_is_read(name, tile):
    found = named_tile(name)
    assert (found.first, found.second, found.tile_k, found.stages) == tile


@pytest.mark.parametrize(
    "name, tile, split_is_known",
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", (128, 256), True),
        ("nvjet_sm90_hss_64x8_64x16_1x1_h_bz_splitK_NNT", (8, 64), False),
    ],
)
def test_a_persistent_kernels_tile_is_read_though_its_grid_is_the_machine(name, tile, split_is_known):
    found = tile_from_name(name, 1, 8192, 8192, (132, 1, 1))
    assert (found.tile_m, found.tile_n) == tile
    assert (found.split_k == 1.0) == split_is_known


@given(
    st.lists(st.sampled_from(("cutlass_", "128x64", "1x", "nvjet_", "xmma_", "_stages_64x3_", "tilesize", "9" * 5000, "\u0663x", " "))).map(
        "".join
    )
)
def test_no_text_upsets_the_reader(name):
    tile_from_name(name, 1, 128, 128, (1, 1, 1))


@pytest.mark.parametrize("sizes", [(0.0, 128.0, 128.0), (1.0, math.nan, 128.0), (1.0, 128.0, math.inf)])
def test_a_product_that_cannot_be_has_no_tile(sizes):
    assert tile_from_name("ampere_sgemm_128x64_tn", *sizes, grid=(1, 2, 1)) is NO_TILE
