"""What kernel names say: public names one by one, published tables whole."""

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.kernel_names import LONGEST_NAME, NO_TILE, tile_from_name
from microbench.runners.kernel_names import parse_kernel_name
from tests.microbench_library.public_names import PUBLIC_NAMES

LEAST_SHARE = 0.999
"""Share of published names that must be read, and of matrix rows whose tile must cover their grid."""


@pytest.mark.parametrize("row", PUBLIC_NAMES, ids=lambda row: row[0][:60])
def test_a_public_name_is_read(row: tuple[object, ...]) -> None:
    name, library, role, tile, step, stages, transpose, instruction, _ = row
    found = parse_kernel_name(str(name))
    assert found is not None
    assert (found.library, found.role) == (library, role)
    assert (found.tile, found.tile_k, found.stages) == (tile, step, stages)
    assert (found.transpose, found.instruction) == (transpose, instruction)


def test_clusters_warps_and_splits_are_told_apart_from_tiles() -> None:
    jet = parse_kernel_name("nvjet_sm90_hss_64x8_64x16_2x1_h_bz_splitK_NNT")
    assert jet is not None
    assert (jet.cluster, jet.splits, jet.persistent, jet.generation) == ((2, 1), True, True, "sm90")
    blackwell = parse_kernel_name("nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN")
    assert blackwell is not None
    assert blackwell.warp_tile == (32, 32)
    sliced = parse_kernel_name("ampere_sgemm_32x32_sliced1x4_tn")
    assert sliced is not None
    assert sliced.warps == (0, 0, 4)
    xmma = parse_kernel_name(
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize32x32x64_stage6_warpsize2x2x1_tensor16x8x16_execute_kernel__5x_cublas"
    )
    assert xmma is not None
    assert xmma.warps == (2, 2, 1)
    flash = parse_kernel_name("void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128, (int)64, (int)128, (int)4, (bool)0>>")
    assert flash is not None
    assert (flash.tile, flash.tile_k, flash.warps, flash.splits) == ((64, 128), 128, (4, 1, 1), True)


def test_elements_of_a_thread_are_read_from_pytorchs_templates() -> None:
    found = parse_kernel_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>>")
    assert found is not None
    assert found.vector == 4


def test_published_names_are_read(shared_data: Path) -> None:
    """All names of the NeuSight tables, main kernels and those launched beside them."""
    counts: dict[str, int] = {}
    for file in ("bmm_train", "linear_train", "linear_larger_shapes", "vector_train"):
        table = pd.read_csv(shared_data / "neusight" / f"{file}.csv")
        names = list(table.kernel_name)
        if "kernels" in table:
            names += [name for several in table.kernels.dropna() for name in several.split(";")]
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    unread = {name: count for name, count in counts.items() if parse_kernel_name(name) is None}
    assert sum(unread.values()) <= (1 - LEAST_SHARE) * sum(counts.values()), unread


@pytest.mark.parametrize(
    ("file", "role"),
    [("bmm_train", "gemm"), ("linear_train", "gemm"), ("linear_larger_shapes", "gemm")],
)
def test_a_matrix_kernels_name_says_matrix(file: str, role: str, shared_data: Path) -> None:
    names = pd.read_csv(shared_data / "neusight" / f"{file}.csv").kernel_name.unique()
    found = [parse_kernel_name(name) for name in names]
    assert all(item is not None and item.role == role and item.tile and item.instruction == "ffma" and item.transpose for item in found)


def test_a_vector_kernels_name_says_its_family(shared_data: Path) -> None:
    table = pd.read_csv(shared_data / "neusight" / "vector_train.csv")
    found = {(family, parse_kernel_name(name)) for family, name in zip(table.family, table.kernel_name, strict=True)}
    roles = {"layernorm": "norm"}  # the table's own word
    assert all(item is not None and item.role == roles.get(family, family) for family, item in found)


def test_published_tiles_cover_their_grids(shared_data: Path) -> None:
    """Tile times grid covers the product, after the swap of cuBLAS's order, for at least 99.9 % of the rows."""
    right = rows = 0
    for file in ("bmm_train", "linear_train", "linear_larger_shapes"):
        table = pd.read_csv(shared_data / "neusight" / f"{file}.csv")
        for row in table.itertuples():
            tile = tile_from_name(row.kernel_name, row.batch, row.m, row.n, (row.grid_x, row.grid_y, row.grid_z))
            covered = -(-row.m // tile.tile_m) * -(-row.n // tile.tile_n) * row.batch * tile.split_k
            right += covered == row.grid_x * row.grid_y * row.grid_z
            rows += 1
    assert right >= LEAST_SHARE * rows


@pytest.mark.parametrize(
    ("name", "tile", "split_is_known"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", (128, 256), True),
        ("nvjet_sm90_hss_64x8_64x16_1x1_h_bz_splitK_NNT", (8, 64), False),
    ],
)
def test_a_persistent_kernels_tile_is_read_though_its_grid_is_the_machine(name: str, tile: tuple[int, int], split_is_known: bool) -> None:
    found = tile_from_name(name, 1, 8192, 8192, (132, 1, 1))
    assert (found.tile_m, found.tile_n) == tile
    assert (found.split_k == 1.0) == split_is_known


WORDS = (
    "cutlass_", "cutlass3x_sm90_", "FlashAttn", "flash_fwd", "_sdpa_", "sdpa_sm90_", "fmha_cutlassF_a_", "fmha_cutlassF_a_1x1_", "_1x1_",
    "copy_kernel<", "128x64", "1x", "nvjet_", "sgemm_", "xmma_", "cute::tuple<cute::C<64>, cute::C<1>, cute::C<9>>",
    "fwd_kernel_traits<64, 1,", "::", "<", "void ", "_stages_64x3_", "tilesize", "sliced1x4",
    "9" * 5000, "\u0663x\u0663", " ", "sm90", "at::native::", "elementwise_kernel<4,",
)  # fmt: skip


@given(st.text(max_size=400) | st.lists(st.sampled_from(WORDS), max_size=40).map("".join))
def test_no_text_upsets_the_reader(name: str) -> None:
    parse_kernel_name(name)
    tile_from_name(name, 1, 128, 128, (1, 1, 1))


@pytest.mark.parametrize("word", WORDS)
def test_a_name_without_end_is_read_as_its_beginning(word: str) -> None:
    """A million letters, most of them the beginning of some form."""
    name = "gemm_" + word * (1_000_000 // len(word))
    assert parse_kernel_name(name) == parse_kernel_name(name[:LONGEST_NAME])


@pytest.mark.parametrize("name", ["nvjet_sm{}_tst_128x64_64x6_2x1_v_bz_TNT", "sgemm_128x64_sliced{}x4_tn", "f<4, {}>elementwise"])
def test_a_number_that_is_no_size_is_passed_over(name: str) -> None:
    found = parse_kernel_name(name.format("7" * 5000))
    assert found is not None
    assert max((*found.tile, *found.warps, found.vector, 0)) < 1000


@pytest.mark.parametrize("size", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_product_that_cannot_be_has_no_tile(size: float, place: int) -> None:
    sizes = [1.0, 128.0, 128.0]
    sizes[place] = size
    assert tile_from_name("ampere_sgemm_128x64_tn", *sizes, grid=(1, 2, 1)) is NO_TILE


@given(
    st.sampled_from([64, 128, 256]), st.sampled_from([8, 24, 64, 128, 256]), st.sampled_from([32, 64, 128]), st.integers(1, 12),
    st.sampled_from(["TNT", "NNT", "NTN", "TNN"]),
)  # fmt: skip
def test_an_nvjet_name_that_was_put_together_is_taken_apart(first: int, second: int, step: int, stages: int, layout: str) -> None:
    found = parse_kernel_name(f"nvjet_tst_{first}x{second}_{step}x{stages}_2x1_v_bz_{layout}")
    assert found is not None
    assert (found.tile, found.tile_k, found.stages, found.transpose) == ((first, second), step, stages, layout[:2].lower())
