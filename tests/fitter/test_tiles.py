"""Tiles learnt from kernel names."""

import json

import numpy as np

from estimator.frozen import thaw
from estimator.kernels.registry import KnownTiles
from estimator.specifications import load_gpu
from estimator.tile_predictor import predicted_tiles, tile_features, tree_from_document, tree_leaves
from estimator.workload import Operator, make_operator
from fitter.tiles import FEWEST_PRODUCTS, fit_tiles

GPU = load_gpu("a100-pcie-40gb")


def products(count: int, seed: int = 0) -> list[Operator]:
    sizes = np.random.default_rng(seed).integers(16, 4096, (count, 3))
    return [make_operator("gemm", "linear", "fp32", batch=1, m=float(m), n=float(n), k=float(k)) for m, n, k in sizes]


def library(operators: list[Operator]) -> KnownTiles:
    """A library with a plain rule: wide tiles for many rows, a split for long reductions."""
    m = np.array([operator["m"] for operator in operators])
    k = np.array([operator["k"] for operator in operators])
    return KnownTiles(tile_m=np.where(m > 1024, 128.0, 32.0), tile_n=np.full(len(m), 64.0), split=np.where(k > 2048, 4.0, 1.0))


def test_a_plain_rule_is_found_again() -> None:
    operators = products(600)
    tree = fit_tiles(operators, GPU, library(operators), seed=0)
    assert tree is not None
    asked = products(400, seed=1)
    tiles, truth = predicted_tiles(asked, GPU, {"gemm.linear": tree}), library(asked)
    assert tiles is not None
    assert np.mean(tiles.tile_m == truth.tile_m) > 0.98
    assert np.mean(tiles.split == truth.split) > 0.98
    assert np.all(tiles.tile_n == 64)


def test_a_tree_reads_back_from_json_as_it_was_written() -> None:
    operators = products(300)
    tree = fit_tiles(operators, GPU, library(operators), seed=0)
    assert tree is not None
    plain = tree_from_document(json.loads(json.dumps(thaw(tree))))
    features = tile_features(products(50, seed=2), GPU)
    np.testing.assert_array_equal(tree_leaves(tree_from_document(tree), features), tree_leaves(plain, features))


def test_leaves_are_leaves() -> None:
    operators = products(300)
    document = fit_tiles(operators, GPU, library(operators), seed=0)
    assert document is not None
    tree = tree_from_document(document)
    assert np.all(tree.feature[tree_leaves(tree, tile_features(products(200, seed=3), GPU))] == -1)


def test_few_names_teach_nothing() -> None:
    operators = products(FEWEST_PRODUCTS - 1)
    assert fit_tiles(operators, GPU, library(operators), seed=0) is None


def test_kernels_without_tiles_or_trees_keep_their_freedom() -> None:
    operators = [*products(2), make_operator("softmax", "softmax", "fp32", rows=8.0, dim=8.0)]
    assert predicted_tiles(operators, GPU, {}) is None
    tree = fit_tiles(products(300), GPU, library(products(300)), seed=0)
    assert tree is not None
    other = predicted_tiles(operators, GPU, {"gemm.bmm": tree})
    assert other is not None
    assert np.all(np.isnan(other.tile_m))
