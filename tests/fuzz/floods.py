"""Small files that stand for gigabytes, and paths that never end: peak memory and seconds of the commands that read them.

python -m tests.fuzz.floods prints a line for each; the exit status is 1 where one takes more than MOST_BYTES or MOST_S, or
shows a traceback.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.schema import KERNEL_COLUMNS, kernel_schema
from tests.collector.dataset_rows import METADATA, a_row, rows_to_table

MOST_BYTES = 1 << 30
MOST_S = 20.0
LINUX_KIB = 1024


def equal_rows(path, rows=3_400_000):
    """One kernel row, so many times."""
    batch = rows_to_table([a_row()], METADATA).take(pa.array(np.zeros(100_000, dtype=np.int64)))
    with pq.ParquetWriter(path, kernel_schema(METADATA), compression="zstd") as writer:
        for _ in range(rows // 100_000):
            writer.write_table(batch, row_group_size=100_000)


def long_texts(path):
    """8,000 texts of a megabyte, which differ in eight ways."""
    texts = pa.array(["x" * 1_000_000 + str(number) for number in range(8)])
    columns = {"operator": texts, "precision": pa.array(["bf16"] * 8), "latency_s": pa.array([1e-4] * 8)}
    batch = pa.table(columns)
    with pq.ParquetWriter(path, batch.schema, compression="zstd") as writer:
        for _ in range(1000):
            writer.write_table(batch)


def long_identities(path):
    """Kernel rows whose ids are a megabyte each."""
    batch = rows_to_table([a_row("x" * 1_000_000)], METADATA)
    pq.write_table(batch.take(pa.array(np.zeros(1500, dtype=np.int64))), path, compression="zstd")


def many_columns(path):
    """100,000 columns of one number."""
    names = [*KERNEL_COLUMNS, *(f"c{number}" for number in range(100_000))]
    pq.write_table(pa.Table.from_arrays([pa.array([1.0])] * len(names), names=names), path)


def many_groups(path):
    """60,000 row groups of one row."""
    with pq.ParquetWriter(path, pa.schema([("t_s", pa.float64()), ("power_w", pa.float64())])) as writer:
        for number in range(60_000):
            writer.write_table(pa.table({"t_s": [float(number)], "power_w": [1.0]}))


def nested(path):
    """Numbers within lists within lists, a thousand of each."""
    inner = pa.ListArray.from_arrays(pa.array([0, 1_000_000, 2_000_000]), pa.array(np.zeros(2_000_000)))
    names = ("operator", "precision", "latency_s", "t_s", "power_w")
    pq.write_table(pa.Table.from_arrays([inner] * len(names), names=names), path, compression="zstd")


def large_pages(path):
    """A billion bytes of zeros a column, in one page each."""
    zeros = pa.array(np.zeros(40_000_000))
    table = pa.table({"t_s": zeros, "power_w": zeros})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, data_page_size=1 << 30, row_group_size=40_000_000)


def false_footer(path):
    """A text of a gigabyte in one page, of which the footer says that it takes a hundred bytes."""
    table = rows_to_table([a_row("x" * 1_000_000_000)], METADATA)
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    with_false_sizes(path, 100)


def with_false_sizes(path, size):
    """State another size of the first column's unpacked pages in a file's footer: a number of Thrift's, as long as the old one."""
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    true = pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    sevens = range(0, max((2 * true).bit_length(), 1), 7)
    old, new = (bytes(2 * number >> shift & 127 | (128 if shift < sevens[-1] else 0) for shift in sevens) for number in (true, size))
    assert old in content[start:]
    path.write_bytes(content[:start] + content[start:].replace(old, new, 1))


FLOODS = {
    "equal rows": equal_rows,
    "long texts": long_texts,
    "long ids": long_identities,
    "columns": many_columns,
    "row groups": many_groups,
    "nested": nested,
    "large pages": large_pages,
    "false footer": false_footer,
}
COMMANDS = {
    "export": ("collect", "export", "{}", "--to", "csv", "--out", "{}.csv"),
    "fit": ("fit", "{}", "--gpu", "a100-pcie-40gb", "-o", "{}.json"),
}


def watched(words, path):
    """A command run as a process of its own: its exit status, peak memory [byte], seconds of the processor, and what it said on stderr."""
    module = {"collect": "collector.cli", "fit": "fitter.cli"}[words[0]]
    code = f"import sys; from {module} import main; sys.argv[0] = {words[0]!r}; sys.exit(main())"
    command = [sys.executable, "-c", code, *(word.format(path) for word in words[1:])]
    quiet = subprocess.DEVNULL
    with tempfile.TemporaryFile() as said, subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=said) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read().decode(errors="replace")
    return process.returncode, usage.ru_maxrss * LINUX_KIB, usage.ru_utime + usage.ru_stime, text


def main():
    """Send every flood through every command, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help=", ".join(FLOODS))
    only, failed = parser.parse_args().only, False
    for name in [only] if only else FLOODS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "flood.parquet"
            # The peak of a command begins at that of its parent.
            maker = multiprocessing.get_context("fork").Process(target=FLOODS[name], args=(path,))
            maker.start()
            maker.join()
            for command, words in COMMANDS.items():
                status, peak, seconds, said = watched(words, path)
                held = peak < MOST_BYTES and seconds < MOST_S and "Traceback" not in said and status in (0, 1, 3)
                failed |= not held
                last = (said.strip().splitlines() or [""])[-1].replace(folder, "…")[:140]
                what = f"{name} ({path.stat().st_size / 1e6:.1f} MB), {command}: {status} {last}"
                print(f"{'held' if held else 'FAILED':6} {peak / 1e6:6.0f} MB {seconds:5.1f} s  {what}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
