"""Tiles learnt from kernel names."""

import json

import numpy as np

from estimator import load_gpu
from estimator.model.coefficients import coefficient_vector
from estimator.model.lowering import KnownTiles, matrix_columns
from estimator.model.tile_choice import candidate_seconds, choice_candidates, group_tiles
from estimator.model.tiling import Candidates, tile_candidates
from estimator.vocabulary.reader import plain as plain_of
from fitter.latency.tile_choice import FEWEST_SHAPES, fit_choice
from tests.estimator.synthetic import matmul

GPU = load_gpu("a100-pcie-40gb")
VALUES = {"math": 1.05, "l2": 1.0, "dram": 1.1, "dram_activations": 1.1, "loop": 0.5, "exponent": 2.0, "epsilon_s": 2e-6}
VECTOR = coefficient_vector(VALUES)


def products(count, seed=0):
    sizes = np.random.default_rng(seed).integers(16, 4096, (count, 3))
    return [matmul(float(m), float(n), float(k), "fp32") for m, n, k in sizes]


LIKED = 64.0
OFFERED = Candidates(tile_m=np.array([128.0, 64.0, 32.0]), tile_n=np.array([128.0, 64.0, 32.0]), split=np.ones(3))


def liking_library(operators):
    """A library that takes the fastest of three tiles but for one kernel, whose cost it believes to be 40 % less; times as well."""
    seconds, _ = candidate_seconds(matrix_columns(operators, GPU), OFFERED, GPU, VECTOR)
    taken = (seconds * np.where(OFFERED.tile_m == LIKED, 0.6, 1.0)).argmin(axis=1)
    tiles = KnownTiles(tile_m=OFFERED.tile_m[taken], tile_n=OFFERED.tile_n[taken], split=OFFERED.split[taken])
    return tiles, seconds[np.arange(len(taken)), taken]


def fitted(operators, known):
    return dict(json.loads(json.dumps(plain_of(fit_choice(operators, GPU, known, VALUES)))))


def same(count, *tile):
    """Kernels of one tile (m, n, split)."""
    return KnownTiles(**dict(zip(KnownTiles.__slots__, (np.full(count, value) for value in tile), strict=True)))


def triples(tiles):
    return list(zip(tiles.tile_m.tolist(), tiles.tile_n.tolist(), tiles.split.tolist(), strict=True))


def test_a_library_with_a_liking_is_found_again_among_the_tiles_that_were_seen():
    document = fitted(products(80), liking_library(products(80))[0])
    asked = products(300, seed=1)
    truth, _ = liking_library(asked)
    found = group_tiles(asked, GPU, document, VECTOR)
    fastest = OFFERED.tile_m[candidate_seconds(matrix_columns(asked, GPU), OFFERED, GPU, VECTOR)[0].argmin(axis=1)]
    assert np.mean(found.tile_m == truth.tile_m) > 0.9 > np.mean(fastest == truth.tile_m)
    assert set(triples(found)) <= set(triples(OFFERED))


def test_unknown_tiles_teach_no_choice():
    assert fit_choice(products(5), GPU, same(5, np.nan, np.nan, np.nan), VALUES) is None


def test_few_names_of_a_library_with_one_kernel_forecast_it():
    asked = products(200, seed=1)
    usual = tile_candidates(GPU, cuda_cores=True)
    seconds, _ = candidate_seconds(matrix_columns(asked, GPU), usual, GPU, VECTOR)
    largest = (usual.tile_m == 128) & (usual.tile_n == 128) & (usual.split == 1)
    assert np.mean(seconds[:, largest][:, 0] > 1.05 * seconds.min(axis=1)) > 0.5  # the fastest tile would mislead
    few = FEWEST_SHAPES // 2
    found = group_tiles(asked, GPU, fitted(products(few), same(few, 128.0, 128.0, 1.0)), VECTOR)
    assert np.mean((found.tile_m == 128) & (found.tile_n == 128)) > 0.9


def test_few_names_leave_tiles_possible_that_they_do_not_show():
    operators = products(FEWEST_SHAPES - 1) * 5  # rows of one shape count once
    known = choice_candidates(fitted(operators, liking_library(operators)[0]))
    assert set(triples(tile_candidates(GPU, cuda_cores=True))) <= set(triples(known))


def test_few_names_offer_no_split_where_libraries_limit_splits_by_the_sms_they_fill():
    operators = [matmul(64, 512.0 * n, 4096) for n in range(1, 6)]
    document = fitted(operators, same(len(operators), 64.0, 64.0, 1.0))
    assert set(document["split"]) == {1}
    assert len(document["tile_m"]) > 1
