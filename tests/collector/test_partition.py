"""A dataset of many hosts: parts with names of their own, whole, read as one."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collector.cli import main
from collector.dataset import DatasetError, read_kernel_dataset, write_kernel_dataset
from collector.dataset.partition import partitioned_place
from tests.collector.dataset_rows import a_row

KEY = {"gpu_uuid": "GPU-1", "campaign": "c"}
METADATA = {"gpu": {"name": "a100-pcie-40gb", "uuid": "GPU-1"}, "key": KEY}


@pytest.fixture
def arguments(tiny_file: Path, calibration: object, tmp_path: Path) -> list[str]:
    sensor = tmp_path / "sensor.json"
    sensor.write_text(json.dumps(calibration.document()))  # type: ignore[attr-defined]
    words = ["--gpu", "sim:a100-pcie-40gb", "--freqs", "510", "--families", "softmax", "--campaign", str(tiny_file), "-q"]
    return [*words, "--sensor", str(sensor), "--out", f"{tmp_path / 'fleet'}/"]


def parts(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*.parquet"))


def test_runs_into_one_place_read_as_one_and_resuming_measures_what_no_part_has(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "fleet"
    assert main([*arguments, "--budget", "12s", "--select", "all"]) == 0
    first = read_kernel_dataset(root).table.num_rows
    assert main([*arguments, "--resume"]) == 0
    ids = read_kernel_dataset(root).table.column("row_id").to_pylist()
    assert len(ids) == len(set(ids)) > first
    capsys.readouterr()
    assert main([*arguments, "--resume"]) == 0
    assert "are there already" in capsys.readouterr().out
    found = parts(root)
    assert len(found) == 2
    assert all(part.parts[0] == "board=a100-pcie-40gb" and part.parts[1].startswith("host=") for part in found)
    assert main(["validate", str(root)]) in (0, 3)
    assert list((root / ".running").iterdir()) == []
    (root / ".running" / "other-GPU-1-abc.parquet").write_bytes(b"half")
    (root / "board=a100-pcie-40gb" / ".x.part.parquet").write_bytes(b"half")
    assert len(read_kernel_dataset(root).files) == 2


def test_hosts_that_publish_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    """Six threads stand for hosts; a part that cannot be moved stays, and is moved under the same name later."""
    place = partitioned_place(f"{tmp_path / 'fleet'}/")
    assert place is not None
    finished = [place.running_output(KEY).with_name(f"host{number}.parquet") for number in range(6)]
    for path in finished:
        write_kernel_dataset([a_row(path.stem)], METADATA, path)
    (place.root / "board=a100-pcie-40gb").write_text("in the way")
    with pytest.raises(DatasetError, match="safe in") as caught:
        place.publish(finished[0])
    assert "\n" not in str(caught.value)
    (place.root / "board=a100-pcie-40gb").unlink()
    with ThreadPoolExecutor(len(finished)) as hosts:
        names = list(hosts.map(place.publish, finished))
    assert len(parts(place.root)) == len(set(names)) == len(finished)
    measured = place.measured(KEY)
    assert measured is not None
    assert sorted(measured.column("row_id").to_pylist()) == sorted(path.stem for path in finished)
    assert place.measured({**KEY, "campaign": "other"}) is None
    assert not any(path.exists() for path in finished)


def test_words_for_places(tmp_path: Path) -> None:
    assert partitioned_place("d.parquet") is None
    assert partitioned_place(str(tmp_path)) is not None
    assert partitioned_place("new/") is not None
    (tmp_path / "notes.txt").write_text("x")
    for words, complaint in (
        (f"{tmp_path}", r"holds other things \(notes.txt\)"),
        (f"{tmp_path / 'notes.txt'}/", "cannot be read"),
        ("s3://x/y/", "is a URL"),
    ):
        with pytest.raises(DatasetError, match=complaint):
            partitioned_place(words)
