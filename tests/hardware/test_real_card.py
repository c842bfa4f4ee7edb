"""What a lent card's script promises without a card: anchors are compared, a call ends in its time with its results packed."""

import json
import os
import re
import subprocess
import tarfile

import numpy as np
import pytest

from collector.campaigns.files import load_campaign
from collector.cli import main
from collector.dataset.reader import read_kernel_dataset
from scripts.anchor_check import FIGURES, WANTED, AnchorError, agreement
from scripts.anchor_check import main as anchor_check

CAMPAIGN = """
description = "few anchors"
warmup_s = 0.0
idle_settle_s = 0.2
idle_window_s = 0.3
kernels_per_block = 10
anchor_every = 0
[measurement]
updates = 5
window_s = 0.3
settle_s = 0.2
gap_s = 0.0
[[kernels]]
family = "softmax"
operator = "softmax"
precision = "fp16"
count = 6
[kernels.shape]
rows = { low = 4096, high = 65536, multiple = 8 }
dim = 1024
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anchors")
    (folder / "few.toml").write_text(CAMPAIGN, encoding="utf-8")
    out = folder / "anchors-1.parquet"
    words = ["--campaign", str(folder / "few.toml"), "--gpu", "sim:a100-pcie-40gb", "--freqs", "current", "--out", str(out), "-q"]
    assert main(words) == 0
    return out


def scaled(source, target, factor, **changes):
    """The dataset with every energy times a factor, and columns replaced."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(source)
    energy = pa.array(np.array(table.column("energy_j").to_pylist(), dtype=np.float64) * factor)
    columns = {"energy_j": energy, **{name: pa.array(values, table.schema.field(name).type) for name, values in changes.items()}}
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), values)
    pq.write_table(table, target)
    return target


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.01, 0), (0.98, 3), (1.5, 3)])
def test_two_measurements_differ_by_what_they_differ_by(measured, tmp_path, factor, status, capsys):
    second = scaled(measured, tmp_path / "b.parquet", factor)
    assert anchor_check([str(measured), str(second), "-o", str(tmp_path / "a.json")]) == status
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["kernels"] == 6
    assert found["energy"]["mean"] == pytest.approx(abs(np.log(factor)), abs=1e-12)
    assert found["energy"]["bias"] == pytest.approx(np.log(factor), abs=1e-12)
    assert found["latency"]["largest"] == found["power"]["largest"] == 0.0
    assert ("met" if status == 0 else "missed") in capsys.readouterr().out
    assert (found["energy"]["mean"] <= WANTED) == (status == 0)


def test_datasets_that_share_too_little_are_refused_in_one_line(measured, tmp_path, capsys):
    rows = len(read_kernel_dataset(measured).table)
    other = scaled(measured, tmp_path / "other.parquet", 1.0, rows=[7] * rows)
    with pytest.raises(AnchorError, match="share 0 kernels, 3 are the least"):
        agreement(measured, other)
    blind = scaled(measured, tmp_path / "blind.parquet", 1.0, power_w=[None] * rows)
    (tmp_path / "no.parquet").write_bytes(b"no dataset")
    for second in (other, blind, tmp_path / "no.parquet", tmp_path / "missing.parquet"):
        assert anchor_check([str(measured), str(second)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("anchor_check: ")
        assert said.err.count("\n") == 1
    assert set(FIGURES) == {"latency", "power", "energy"}


def test_the_campaigns_of_the_script_are_shipped(repository):
    text = (repository / "scripts" / "real_card.sh").read_text(encoding="utf-8")
    names = re.findall(r"^(?:CAMPAIGN|INSTRUCTIONS|ANCHORS)=\$\{\w+:-([\w-]+)\}$", text, re.MULTILINE)
    assert len(names) == 3
    library, generated, anchors = (load_campaign(name) for name in names)
    assert (library.instructions, generated.kernels) == ((), ())
    assert sum(group.count for group in anchors.kernels) == 30
    assert anchors.anchor_every == 0


def test_a_call_without_time_begins_nothing_and_packs_what_is_there(repository, tmp_path):
    folder, out = tmp_path / "results", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    (folder / "dataset.parquet").write_bytes(b"rows of the call before")
    environment = {**os.environ, "GPU": "sim:h200-sxm", "FOLDER": str(folder), "OUT": str(out), "CALL_S": "1", "PYTHON": "/nowhere/python"}
    command = ["bash", str(repository / "scripts" / "real_card.sh"), "setup", "doctor", "sensor", "campaign", "instructions", "fit", "pack"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    for stage in ("versions", "doctor", "sensor", "dataset", "instructions", "fit"):
        assert f"== {stage}: no time is left in this call; call again" in done.stdout
    (piece,) = out.iterdir()
    assert piece.name == "results.tar.gz.00"
    with tarfile.open(piece) as packed:
        assert "./dataset.parquet" in packed.getnames()
