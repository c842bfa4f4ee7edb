"""A dataset of many hosts: parts with names of their own, whole, read as one."""

import json
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from collector.cli import main
from collector.dataset import DatasetError, read_kernel_dataset
from collector.dataset.partition import PartitionedPlace, partitioned_place
from collector.dataset.traces import traces_path

BOARD = "sim:a100-pcie-40gb"


@pytest.fixture
def arguments(tiny_file: Path, calibration: object, tmp_path: Path) -> list[str]:
    sensor = tmp_path / "sensor.json"
    sensor.write_text(json.dumps(calibration.document()))  # type: ignore[attr-defined]
    return ["--gpu", BOARD, "--freqs", "510", "--families", "softmax", "--campaign", str(tiny_file), "--sensor", str(sensor), "-q"]


def parts(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*.parquet"))


def test_runs_into_one_place_do_not_collide_and_read_as_one(arguments: list[str], tmp_path: Path) -> None:
    root = tmp_path / "fleet"
    assert main([*arguments, "--out", f"{root}/"]) == 0
    assert main([*arguments, "--out", str(root), "--seed", "1"]) == 0
    found = parts(root)
    assert len(found) == len(set(found)) == 2
    assert all(part.parts[0] == "board=a100-pcie-40gb" and part.parts[1].startswith("host=") for part in found)
    dataset = read_kernel_dataset(root)
    assert len(dataset.files) == 2
    assert main(["validate", str(root)]) in (0, 3)
    assert list((root / ".running").iterdir()) == []


def test_a_url_is_a_place_too(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTPRINT_SPOOL", str(tmp_path / "spool"))
    root = tmp_path / "bucket"
    assert main([*arguments, "--out", root.as_uri(), "--traces"]) == 0
    (part,) = parts(root)
    assert traces_path(root / part).is_file()
    assert [path for path in (tmp_path / "spool").rglob("*") if path.is_file()] == []


def test_resuming_measures_only_what_no_part_has(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "fleet"
    assert main([*arguments, "--out", f"{root}/", "--budget", "12s"]) == 0
    first = read_kernel_dataset(root).table.num_rows
    assert main([*arguments, "--out", str(root), "--resume"]) == 0
    ids = read_kernel_dataset(root).table.column("row_id").to_pylist()
    assert len(ids) == len(set(ids)) > first
    capsys.readouterr()
    assert main([*arguments, "--out", str(root), "--resume"]) == 0
    assert "are there already" in capsys.readouterr().out
    assert len(parts(root)) == 2


def test_unfinished_runs_are_no_parts(arguments: list[str], tmp_path: Path) -> None:
    root = tmp_path / "fleet"
    assert main([*arguments, "--out", f"{root}/"]) == 0
    running = root / ".running"
    (running / "other-GPU-1-abc.parquet").write_bytes(b"half")
    (root / "board=a100-pcie-40gb" / ".x.part.parquet").write_bytes(b"half")
    assert len(read_kernel_dataset(root).files) == 1


def test_a_part_that_could_not_be_published_is_published_by_the_next_run(arguments: list[str], tmp_path: Path) -> None:
    root = tmp_path / "fleet"
    assert main([*arguments, "--out", f"{root}/"]) == 0
    (part,) = parts(root)
    dataset = read_kernel_dataset(root / part)
    place = partitioned_place(str(root))
    assert place is not None
    running = place.running_output(dataset.metadata["key"])
    (root / part).rename(running)
    assert main([*arguments, "--out", str(root), "--resume"]) == 0
    assert len(parts(root)) == 1
    assert list(running.parent.iterdir()) == []


class Broken:
    """A file system that fails when it is written to; all else is the local one's."""

    def __init__(self, message: str) -> None:
        self._message, self._local = message, pafs.LocalFileSystem()

    def __getattr__(self, name: str) -> object:
        return getattr(self._local, name)

    def open_output_stream(self, _path: str) -> object:
        raise OSError(5, self._message)


def test_a_place_that_fails_is_told_in_one_line_and_keeps_the_rows(arguments: list[str], tmp_path: Path) -> None:
    assert main([*arguments, "--out", str(tmp_path / "d.parquet")]) == 0
    place = PartitionedPlace(name="s3://b/x", filesystem=Broken("slow\ndown"), root=str(tmp_path / "root"), local=None)
    with pytest.raises(DatasetError, match="parts cannot be written there") as caught:
        place.check(tmp_path / "spool" / "x.parquet")
    assert "\n" not in str(caught.value)
    with pytest.raises(DatasetError, match="safe in"):
        place.publish(tmp_path / "d.parquet")
    assert read_kernel_dataset(tmp_path / "d.parquet").table.num_rows


def test_words_for_places(tmp_path: Path) -> None:
    assert partitioned_place("d.parquet") is None
    assert partitioned_place(str(tmp_path)) is not None
    assert partitioned_place("new/") is not None
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DatasetError, match=r"holds other things \(notes.txt\)"):
        partitioned_place(str(tmp_path))
    with pytest.raises(DatasetError, match="cannot be read"):
        partitioned_place(f"{tmp_path / 'notes.txt'}/")
    with pytest.raises(DatasetError, match="not a place that can be written"):
        partitioned_place("gopher://x/y")
