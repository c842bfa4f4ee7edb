"""Tiles learnt from kernel names."""

import json

import numpy as np

from estimator.model.coefficients import coefficient_vector
from estimator.model.lowering import KnownTiles, matrix_columns
from estimator.model.tile_choice import candidate_seconds, choice_candidates, group_tiles
from estimator.model.tiling import Candidates, tile_candidates
from estimator.vocabulary.reader import plain as plain_of
from estimator.vocabulary.specifications import load_gpu
from estimator.vocabulary.workload import Operator, make_operator
from fitter.latency.tile_choice import FEWEST_SHAPES, fit_choice

GPU = load_gpu("a100-pcie-40gb")
VALUES = {"math": 1.05, "l2": 1.0, "dram": 1.1, "dram_activations": 1.1, "loop": 0.5, "exponent": 2.0, "epsilon_s": 2e-6}
VECTOR = coefficient_vector(VALUES)
COEFFICIENTS = np.tile(VECTOR, (400, 1))


def products(count: int, seed: int = 0) -> list[Operator]:
    sizes = np.random.default_rng(seed).integers(16, 4096, (count, 3))
    return [make_operator("gemm", "linear", "fp32", batch=1, m=float(m), n=float(n), k=float(k)) for m, n, k in sizes]


def library(operators: list[Operator]) -> KnownTiles:
    """A library with a plain rule: wide tiles for many rows, a split for long reductions."""
    m = np.array([operator["m"] for operator in operators])
    k = np.array([operator["k"] for operator in operators])
    return KnownTiles(tile_m=np.where(m > 1024, 128.0, 32.0), tile_n=np.full(len(m), 64.0), split=np.where(k > 2048, 4.0, 1.0))


LIKED = (64.0, 64.0)
OFFERED = Candidates(tile_m=np.array([128.0, 64.0, 32.0]), tile_n=np.array([128.0, 64.0, 32.0]), split=np.ones(3))


def liking_library(operators: list[Operator]) -> tuple[KnownTiles, np.ndarray]:
    """A library that takes the fastest of three tiles but for one kernel, whose cost it believes to be 40 % less; times as well."""
    seconds, _ = candidate_seconds(matrix_columns(operators, GPU), OFFERED, GPU, VECTOR)
    taken = (seconds * np.where(OFFERED.tile_m == LIKED[0], 0.6, 1.0)).argmin(axis=1)
    tiles = KnownTiles(tile_m=OFFERED.tile_m[taken], tile_n=OFFERED.tile_n[taken], split=OFFERED.split[taken])
    return tiles, seconds[np.arange(len(taken)), taken]


def test_a_library_with_a_liking_is_found_again_where_the_fastest_tile_misleads() -> None:
    document = fit_choice(products(80), GPU, liking_library(products(80))[0], VALUES)
    assert document is not None
    asked = products(300, seed=1)
    truth, _ = liking_library(asked)
    found = group_tiles(asked, GPU, json.loads(json.dumps(plain_of(document))), VECTOR)
    seconds, _ = candidate_seconds(matrix_columns(asked, GPU), OFFERED, GPU, VECTOR)
    fastest = OFFERED.tile_m[seconds.argmin(axis=1)]
    assert np.mean(found.tile_m == truth.tile_m) > 0.9 > np.mean(fastest == truth.tile_m)


def test_a_choice_takes_only_tiles_that_were_seen_and_can_be() -> None:
    document = fit_choice(products(80), GPU, liking_library(products(80))[0], VALUES)
    assert document is not None
    known, tiles = choice_candidates(document), group_tiles(products(50, seed=2), GPU, document, VECTOR)
    seen = set(zip(known.tile_m, known.tile_n, strict=True))
    assert set(zip(tiles.tile_m, tiles.tile_n, strict=True)) <= seen
    assert np.all(tiles.split == 1)


def test_unknown_tiles_teach_no_choice() -> None:
    nothing = np.full(5, np.nan)
    assert fit_choice(products(5), GPU, KnownTiles(tile_m=nothing, tile_n=nothing, split=nothing), VALUES) is None


def test_few_names_of_a_library_with_one_kernel_forecast_it() -> None:
    asked = products(200, seed=1)
    usual = tile_candidates(GPU, cuda_cores=True)
    seconds, _ = candidate_seconds(matrix_columns(asked, GPU), usual, GPU, VECTOR)
    largest = (usual.tile_m == 128) & (usual.tile_n == 128) & (usual.split == 1)
    assert np.mean(seconds[:, largest][:, 0] > 1.05 * seconds.min(axis=1)) > 0.5  # the fastest tile would mislead
    few = FEWEST_SHAPES // 2
    same = KnownTiles(tile_m=np.full(few, 128.0), tile_n=np.full(few, 128.0), split=np.ones(few))
    document = fit_choice(products(few), GPU, same, VALUES)
    assert document is not None
    found = group_tiles(asked, GPU, document, VECTOR)
    assert np.mean((found.tile_m == 128) & (found.tile_n == 128)) > 0.9


def test_few_names_leave_tiles_possible_that_they_do_not_show() -> None:
    operators = products(FEWEST_SHAPES - 1) * 5  # rows of one shape count once
    document = fit_choice(operators, GPU, liking_library(operators)[0], VALUES)
    assert document is not None
    known = choice_candidates(document)
    usual = tile_candidates(GPU, cuda_cores=True)
    assert {*zip(usual.tile_m, usual.tile_n, usual.split, strict=True)} <= {*zip(known.tile_m, known.tile_n, known.split, strict=True)}


def test_one_name_of_a_fastest_kernel_leaves_the_fastest() -> None:
    usual, asked = tile_candidates(GPU, cuda_cores=True), products(200, seed=1)
    own = candidate_seconds(matrix_columns(products(1), GPU), usual, GPU, VECTOR)[0].argmin(axis=1)
    document = fit_choice(products(1), GPU, KnownTiles(tile_m=usual.tile_m[own], tile_n=usual.tile_n[own], split=usual.split[own]), VALUES)
    assert document is not None
    taken = group_tiles(asked, GPU, document, VECTOR)
    seconds, possible = candidate_seconds(matrix_columns(asked, GPU), usual, GPU, VECTOR)
    place = [
        np.flatnonzero((usual.tile_m == m) & (usual.tile_n == n) & (usual.split == s))[0]
        for m, n, s in zip(taken.tile_m, taken.tile_n, taken.split, strict=True)
    ]
    slower = seconds[np.arange(len(asked)), place] / np.where(possible, seconds, np.inf).min(axis=1)
    assert np.median(slower) < 1.1


def test_few_names_offer_no_split_where_libraries_limit_splits_by_the_sms_they_fill() -> None:
    operators = [make_operator("gemm", "linear", "bf16", batch=1, m=64, n=512.0 * n, k=4096) for n in range(1, 6)]
    few = len(operators)
    known = KnownTiles(tile_m=np.full(few, 64.0), tile_n=np.full(few, 64.0), split=np.ones(few))
    document = fit_choice(operators, GPU, known, VALUES)
    assert document is not None
    assert set(document["split"]) == {1}
    assert len(document["tile_m"]) > 1
