"""Rows that a known bundle would give, for laws of the fitter that need no measurement."""

import json
from dataclasses import replace

import numpy as np

from estimator import estimate, load_gpu, make_operator, predict_kernels
from estimator.bundle.content import CollectionRecord, DatasetRecord, Provenance
from estimator.vocabulary.reader import plain
from fitter.latency.residual_tier import GroupErrors, shape_errors, tier_document
from fitter.power.solver import PowerRows
from fitter.rows.columns import Dataset, KernelRows, Selection, WorkloadRows
from tests.estimator.synthetic import addition, known_bundle, matmul, transformer

GPU_NAME = "a100-pcie-40gb"


PLANTED = replace(
    known_bundle(load_gpu(GPU_NAME)),
    name="planted",
    version="0.1.0",
    provenance=Provenance(
        created_utc="2026-01-01T00:00:00Z",
        wattprint_version="0.1.0",
        commit="",
        seed=0,
        datasets=(DatasetRecord(name="planted.csv", sha256="0" * 64, kind="kernel table", rows=3, used=2, rejected={"BAD_LATENCY": 1}),),
    ),
    collections=(CollectionRecord(name="planted", rows=2),),
)
"""A bundle with known coefficients that can be saved."""


def coefficients(fit):
    """Coefficients of every group of a fit or a bundle."""
    return {key: group.coefficients for key, group in fit.groups.items()}


def various_operators(count, seed=0):
    """Matrix products, softmax and element-wise kernels of random size."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        m, n, k = (int(v) for v in 64 * rng.integers(4, 64, 3))
        if i % 3 == 0:
            found.append(matmul(m, n, k))
        elif i % 3 == 1:
            found.append(make_operator("softmax", "softmax", "bf16", rows=16 * m, dim=n))
        else:
            found.append(addition(m * n))
    return found


def places(gpu, source, count):
    """GPU and place of the rows of one file."""
    zeros = np.zeros(count, dtype=np.int64)
    board = {"gpus": (gpu,), "gpu_index": zeros, "collections": ("planted",), "collection_index": zeros}
    return {**board, "sources": (source,), "source_index": zeros, "row": np.arange(1, count + 1)}


def kernel_rows(bundle, operators, noise=0.0, seed=0):
    """Rows that the bundle predicts for operators at 900 MHz, with relative noise."""
    count, rng = len(operators), np.random.default_rng(seed)
    clock = np.full(count, 900.0)
    unique = list(dict.fromkeys(operators))
    table = predict_kernels(operators, bundle, bundle.gpu, sm_clock_mhz=clock, warm=np.ones(count, dtype=bool))
    unknown = ("power_std_w", "temperature_c", "tile_m", "tile_n", "split_k")
    return KernelRows(
        operators=tuple(unique),
        operator_index=np.array([unique.index(o) for o in operators], dtype=np.int64),
        sm_clock_mhz=clock,
        sm_clock_asked_mhz=clock,
        latency_s=table.latency_s * np.exp(noise * rng.standard_normal(count)),
        power_w=table.power_w * np.exp(noise * rng.standard_normal(count)),
        at_limit=np.zeros(count, dtype=bool),
        l2_warm=np.ones(count, dtype=bool),
        **dict.fromkeys(("sustained", "burst"), np.zeros(count, dtype=bool)),
        library=("",) * count,
        kernel_name=("",) * count,
        weight=np.ones(count),
        **places(bundle.gpu, "planted.csv", count),
        **dict.fromkeys(unknown, np.full(count, np.nan)),
    )


def various_workloads():
    """Decoders of several sizes and two families."""
    return [
        transformer(tokens, width, 12, name=f"{family}-{tokens}-{width}", family=family)
        for family, width in (("small", 512), ("large", 1024))
        for tokens in (128, 256, 512, 1024, 2048)
    ]


def workload_rows(bundle, workloads, noise=0.0, clocks_mhz=(900.0,)):
    """Rows that the bundle predicts for workloads at each clock, with relative noise."""
    answers = [estimate(workload, bundle, sm_clock_mhz=clock)[0] for workload in workloads for clock in clocks_mhz]
    count, rng = len(answers), np.random.default_rng(0)
    latency = np.array([a.latency_s for a in answers]) * np.exp(noise * rng.standard_normal(count))
    energy = latency * np.array([a.power_w for a in answers]) * np.exp(noise * rng.standard_normal(count))
    clock = np.tile(np.asarray(clocks_mhz), len(workloads))
    return WorkloadRows(
        workloads=tuple(workloads),
        workload_index=np.repeat(np.arange(len(workloads)), len(clocks_mhz)),
        sm_clock_asked_mhz=clock,
        sm_clock_measured_mhz=clock,
        latency_s=latency,
        energy_j=energy,
        temperature_c=np.full(count, 60.0),
        weight=np.ones(count),
        **places(bundle.gpu, "runs.csv", count),
    )


def power_rows(clock_mhz, **columns):
    """Rows of the power fit at locked clocks: 1 W of a busy board with cold operands, unless given."""
    ones = np.ones(len(clock_mhz))
    usual = {"power_w": ones, "clock_mhz": clock_mhz, "asked_mhz": clock_mhz, "warm_ratio": np.inf * ones, "busy": ones}
    return PowerRows(**usual | {"weight": ones, "relative_std": 0.0 * ones} | columns)


def selection_of(kernels=None, workloads=None):
    """A selection of given rows without rejections."""
    records = [
        Dataset(name=rows.sources[0], sha256=digit * 64, kind="kernel table", rows=len(rows), used=len(rows), rejected={})
        for rows, digit in ((kernels, "1"), (workloads, "2"))
        if rows is not None
    ]
    return Selection(kernels=kernels, workloads=workloads, datasets=tuple(records))


def written_tier(operators, error, pattern):
    """The residual tier of these errors and their pattern, as a bundle holds it."""
    parts = GroupErrors(ln_error=error, left_out=np.abs(error), corrected=True, quantiles=(2.0, 3.0, 0.4), pattern=pattern)
    return json.loads(json.dumps(plain(tier_document(shape_errors(operators), parts, None, seed=0))))


def spec():
    """The GPU of the planted bundle."""
    return load_gpu(GPU_NAME)


def saved(bundle, folder):
    """A file that holds the bundle."""
    from estimator.bundle.files import save_bundle

    path = folder / "planted.json"
    save_bundle(bundle, path)
    return path


def various_products(count, seed=0):
    """Matrix products in bf16 of any size from 16 to 4096."""
    sizes = np.exp2(np.random.default_rng(seed).uniform(4, 12, (count, 3))).astype(int)
    return [matmul(*(float(size) for size in own)) for own in sizes]
