"""The kernel dataset: its columns, a durable writer and a reader."""

from collector.dataset.reader import (
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
    kernel_schema,
    operator_columns,
    operators_of,
    rows_to_table,
)
from collector.dataset.writer import claimed_dataset, open_kernel_writer, write_kernel_dataset
from collector.errors import DatasetError

__all__ = [
    "FLAGS",
    "KERNEL_COLUMNS",
    "SCHEMA_VERSION",
    "SHAPE_COLUMNS",
    "DatasetError",
    "KernelDataset",
    "claimed_dataset",
    "conforming",
    "file_digest",
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
