"""The kernel dataset: its columns, a durable writer and a reader."""

from collector.dataset.reader import (
    DatasetFile,
    KernelDataset,
    conforming,
    file_digest,
    is_collected,
    is_kernel_dataset,
    kernel_metadata,
    read_kernel_dataset,
)
from collector.dataset.schema import (
    FLAGS,
    KERNEL_COLUMNS,
    SCHEMA_VERSION,
    SHAPE_COLUMNS,
    Column,
    Row,
    flag_counts,
    kernel_schema,
    operator_columns,
    operators_of,
    rows_to_table,
)
from collector.dataset.writer import KernelWriter, claimed_dataset, open_kernel_writer, write_kernel_dataset
from collector.errors import DatasetError

__all__ = [
    "FLAGS",
    "KERNEL_COLUMNS",
    "SCHEMA_VERSION",
    "SHAPE_COLUMNS",
    "Column",
    "DatasetError",
    "DatasetFile",
    "KernelDataset",
    "KernelWriter",
    "Row",
    "claimed_dataset",
    "conforming",
    "file_digest",
    "flag_counts",
    "is_collected",
    "is_kernel_dataset",
    "kernel_metadata",
    "kernel_schema",
    "open_kernel_writer",
    "operator_columns",
    "operators_of",
    "read_kernel_dataset",
    "rows_to_table",
    "write_kernel_dataset",
]
