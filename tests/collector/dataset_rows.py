"""Rows of datasets for tests."""

import json
import resource
import tomllib
from contextlib import contextmanager

import pyarrow as pa

from collector.dataset.reader import log_path
from collector.dataset.schema import checked_row, kernel_schema, operator_columns
from collector.dataset.writer import open_kernel_writer, write_parquet
from estimator import make_operator
from estimator.vocabulary.workload import FAMILY_FIELDS, FAMILY_OPERATORS, TABLED

LINEAR = make_operator("gemm", "linear", "bf16", batch=1, m=128, n=256, k=512)
METADATA = {"gpu": {"name": "a board"}, "idle": []}


ROW = """{
"gpu": "a100-pcie-40gb", "gpu_uuid": "GPU-0", "throttle_reasons": 0, "launches": 100, "latency_s": 1e-4, "power_w": 200.0,
"samples": 20, "flags": [], "trial": 0, "seed": 1
}"""


def a_row(row_id="r0", operator=LINEAR, **changes):
    return {**operator_columns(operator), "row_id": row_id, **json.loads(ROW), **changes}


def write_log(folder, count):
    """The log of a campaign that stopped after `count` rows."""
    output = folder / "dataset.parquet"
    with open_kernel_writer(output, METADATA) as writer:
        for index in range(count):
            writer.append(a_row(f"r{index}"))
    return log_path(output)


def rows_to_table(rows, metadata):
    """Rows as a table of the kernel schema."""
    return pa.Table.from_pylist([checked_row(row) for row in rows], schema=kernel_schema(metadata))


def write_kernel_dataset(rows, metadata, output):
    """Write rows as a Parquet file."""
    write_parquet(rows_to_table(rows, metadata), output)


def operators_of(table):
    """The operator of every row: the inverse of `operator_columns`."""
    found = []
    for row in table.to_pylist():
        names = ("precision_out", "precision_kv", *FAMILY_FIELDS[row["family"]])
        fields = {name: row[name] for name in names if row[name] is not None}
        found.append(make_operator(row["family"], row["operator"], row["precision"], cuda_cores=row["cuda_cores"], **fields))
    return found


@contextmanager
def disk_with(size):
    """No file grows beyond this size, as on a disk that is full."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, unlimited[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


def product(m, n=None, k=None, precision="fp16"):
    """A matrix product, square where one size is given."""
    return make_operator("gemm", "linear", precision, batch=1, m=m, n=n or m, k=k or m)


def addition(elements, precision="fp16"):
    """A sum of two arrays of so many elements."""
    return make_operator("elementwise", "add", precision, elements=elements, reads=2 * elements)


SHAPES = tomllib.loads("""
gemm = {batch = 2, m = 512, n = 768, k = 1024}
attention = {batch = 2, queries = 512, context = 512, heads = 16, kv_heads = 4, head_dim = 64, window = 0, causal = 1}
softmax = {rows = 4096, dim = 512}
norm = {rows = 4096, dim = 1024}
reduction = {rows = 1024, dim = 2048}
elementwise = {elements = 1_048_576, reads = 2_097_152}
copy = {elements = 1_048_576, reads = 1_048_576}
[conv]
batch = 8
channels = 64
height = 28
width = 28
filters = 128
kernel_h = 3
kernel_w = 3
stride = 1
padding = 1
groups = 1
""")


def operators_of_every_kind(precision):
    """One of each."""
    result = []
    for family, operators in FAMILY_OPERATORS.items():
        for operator in operators if family not in TABLED else ():
            shape = SHAPES[family] | ({"groups": 64} if operator == "depthwise" else {}) | ({"queries": 1} if operator == "decode" else {})
            result.append(make_operator(family, operator, precision, **shape))
    return result
