"""Data sets and bundles made to harm: refused in one line, or read for what they are; nothing in them is ever executed."""

import io
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collector.errors import DatasetError
from estimator import EstimatorError
from fitter.cli import main
from fitter.errors import FitterError
from fitter.rows.partitions import open_partitioned
from fitter.rows.selection import read_selection
from fitter.scale.streamed import SampleTask, sample_partition

REFUSALS = (FitterError, EstimatorError, DatasetError)
ROWS = 40


class Trap:
    """Creates a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def table():
    """A kernel table without fault."""
    columns = {
        name: [name_of] * ROWS for name, name_of in (("family", "softmax"), ("operator", "softmax"), ("gpu", "a10"), ("precision", "fp32"))
    }
    return pa.table({**columns, "rows": list(range(1000, 1000 + ROWS)), "dim": [512] * ROWS, "latency_s": [1e-4] * ROWS})


def parquet(content):
    out = io.BytesIO()
    pq.write_table(content, out)
    return out.getvalue()


def refusal(attempt):
    """The line with which something is refused; "" where it is not."""
    try:
        attempt()
    except REFUSALS as error:
        return str(error)
    return ""


def test_pickles_in_metadata_are_never_opened(tmp_path):
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    extension = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": trap}
    fields = [field.with_metadata(extension) if field.name == "latency_s" else field for field in table().schema]
    metadata = {b"pandas": trap, b"gpu": trap, b"idle": trap, b"campaign": trap, b"sensor": trap}
    content = pa.Table.from_arrays(table().columns, schema=pa.schema(fields, metadata=metadata))
    path = tmp_path / "d.parquet"
    path.write_bytes(parquet(content))
    assert "\n" not in refusal(lambda: read_selection([str(path)], None))
    assert not sprung.exists()
    pickle.loads(trap)
    assert sprung.exists()  # the trap works


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("garbage", [b"{", b"[" * 5000, b"\x80\x04\x95", b"null", b'{"columns": 7, "index_columns": [9]}'])
def test_what_another_program_noted_in_a_file_does_not_matter(pieces, garbage, tmp_path):
    path = tmp_path / "d.parquet"
    path.write_bytes(parquet(table().replace_schema_metadata({b"pandas": garbage, b"note": garbage})))
    partitions = open_partitioned(path).parts
    task = SampleTask(collected=None, gpu=None, seed=0)
    rows = sample_partition(partitions[0], task).rows if pieces else read_selection([str(path)], None).kernels
    assert len(rows) == ROWS


NAMES = (
    "/etc/passwd", "/dev/null", "trap.json", "trap.parquet", "trap.csv", "d\0.csv", "x" * 5000,
    "http://127.0.0.1:9/d.parquet", "file:///etc/passwd", "-", "|id", "",
)  # fmt: skip
"""Names that mean something to a shell, to a URL opener, or to nobody."""


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_a_trick_is_refused_in_one_line(name, tmp_path, capsys):
    sprung, out = tmp_path / "sprung", tmp_path / "b.json"
    if name.startswith("trap"):
        (tmp_path / name).write_bytes(pickle.dumps(Trap(sprung)))
        name = str(tmp_path / name)
    for arguments in ([name, "-o", str(out)], ["show", name]):
        assert main(arguments) in (1, 2)
        assert "Traceback" not in capsys.readouterr().err
    assert not out.exists()
    assert not sprung.exists()


def test_a_workload_file_is_named_for_what_it_is():
    example = Path(__file__).parents[2] / "examples" / "gpt2-prefill.json"
    assert "JSON, no table of measurements; a workload file is for `estimate`" in refusal(lambda: read_selection([str(example)], None))


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_table_with_other_separators_is_told_what_to_do(separator, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("operator,m,n,k,precision,latency_s\nlinear,128,128,128,bf16,1e-5\n".replace(",", separator))
    assert "not separated by commas" in refusal(lambda: read_selection([path], None))
