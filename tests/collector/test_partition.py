"""A dataset of many hosts: parts with names of their own, whole, read as one."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from collector.cli import main
from collector.dataset import DatasetError, read_kernel_dataset
from collector.dataset.partition import PartitionedPlace, partitioned_place
from tests.collector.object_store import ObjectStore, object_store

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


def test_resuming_measures_only_what_no_part_has(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "fleet"
    assert main([*arguments, "--out", f"{root}/", "--budget", "12s", "--select", "all"]) == 0
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


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectStore]:
    """An object store that speaks S3, and the rights that its client wants to have."""
    for name, value in {"ACCESS_KEY_ID": "lab", "SECRET_ACCESS_KEY": "lab", "EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("WATTPRINT_SPOOL", str(tmp_path / "spool"))
    with object_store() as opened:
        yield opened


def fetched(store: ObjectStore, folder: Path) -> Path:
    """The objects as files, as `aws s3 sync` leaves them."""
    for key in store.names():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(store.objects[key])
    return folder / "lab" / "fleet"


def test_an_object_store_takes_whole_parts_that_resuming_does_not_measure_again(
    arguments: list[str], store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*arguments, "--out", store.url("fleet")]
    assert main([*words, "--budget", "12s", "--select", "all"]) == 0
    assert main([*words, "--resume"]) == 0
    assert main([*words, "--resume"]) == 0
    assert "are there already" in capsys.readouterr().out
    assert len(store.names(".parquet")) == 2
    assert store.uploads == {}
    assert not [key for key in store.names() if not key.startswith("lab/fleet/board=a100-pcie-40gb/host=")]
    ids = read_kernel_dataset(fetched(store, tmp_path / "copy")).table.column("row_id").to_pylist()
    assert len(ids) == len(set(ids)) > 0


def test_rows_that_an_object_store_refuses_are_kept_and_uploaded_by_the_next_run(
    arguments: list[str], store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*arguments, "--out", store.url("fleet")]
    assert main([*arguments, "--out", str(tmp_path / "d.parquet")]) == 0
    dataset = read_kernel_dataset(tmp_path / "d.parquet")
    place = partitioned_place(store.url("fleet"))
    assert place is not None
    running = place.running_output(dataset.metadata["key"])
    running.parent.mkdir(parents=True)
    (tmp_path / "d.parquet").rename(running)
    store.fail_writes = True
    with pytest.raises(DatasetError, match="safe in") as caught:
        place.publish(running)
    assert "\n" not in str(caught.value)
    capsys.readouterr()
    assert main([*words, "--resume"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert (running.is_file(), store.names()) == (True, [])
    store.fail_writes = False
    assert main([*words, "--resume"]) == 0
    assert len(store.names(".parquet")) == 1
    assert not running.exists()


FILE_SYSTEMS: dict[str, Callable[[Path], tuple[pafs.FileSystem, str]]] = {
    "local": lambda folder: (pafs.LocalFileSystem(), str(folder)),
    "arrow's own stand-in": lambda _: pafs.FileSystem.from_uri("mock:///fleet"),
}


@pytest.mark.parametrize("kind", FILE_SYSTEMS)
def test_hosts_that_publish_at_once_into_any_file_system_lose_and_double_nothing(kind: str, arguments: list[str], tmp_path: Path) -> None:
    """Six threads stand for hosts; each part must arrive whole and alone, and no half one may be left beside them."""
    filesystem, root = FILE_SYSTEMS[kind](tmp_path / "fleet")
    place = PartitionedPlace(name="fleet://", filesystem=filesystem, root=root, local=None)
    assert main([*arguments, "--out", str(tmp_path / "d.parquet")]) == 0
    content = (tmp_path / "d.parquet").read_bytes()
    finished = [tmp_path / f"host{number}.parquet" for number in range(6)]
    for path in finished:
        path.write_bytes(content)
    place.check(tmp_path / "spool" / "x.parquet")
    with ThreadPoolExecutor(len(finished)) as hosts:
        names = list(hosts.map(place.publish, finished))
    found = [info for info in filesystem.get_file_info(pafs.FileSelector(root, recursive=True)) if info.is_file]
    assert len(set(names)) == len(found) == len(finished)
    for info in found:
        with filesystem.open_input_stream(info.path) as stream:
            assert stream.read() == content
    dataset = read_kernel_dataset(tmp_path / "d.parquet")
    measured = place.measured(dataset.metadata["key"])
    assert measured is not None
    assert measured.num_rows == len(finished) * dataset.table.num_rows
    assert not any(path.exists() for path in finished)


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
