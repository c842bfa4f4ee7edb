"""Data that cross a link: kernels on memory of the host and of another board, and the copy engines, on every kind of runner."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collector.bench import open_simulated
from collector.dataset.reader import read_kernel_dataset
from collector.errors import RunnerError
from collector.simulated.profile import load_board
from estimator import load_gpu
from fitter.instructions.section import link_energies
from fitter.rows.instruction_dataset import read_instruction_rows
from fitter.rows.tables import Table
from microbench.loads.copies import COPIES, CopyLoad
from microbench.loads.generated import LoadGroup, generated_loads
from tests.collector.campaigns import SHORT_HEAD, campaign_words
from tests.microbench_library.conftest import open_fake_board
from tests.words import called, changed

BOARD = "a100-pcie-40gb"
CAMPAIGN = f"""{SHORT_HEAD}
[[instructions]]
kernels = ["host_*", "peer_read", "copy_*"]
"""


@pytest.fixture(scope="module")
def loads(toolchain):
    found, _ = generated_loads([LoadGroup(kernels=("host_*", "peer_*"))], load_gpu(BOARD), toolchain)
    return {load.kernel.name: load for load in found}


@pytest.fixture(scope="module")
def words(tmp_path_factory, sensor_file):
    """A campaign on a simulated board with another one beside it."""
    link = "[link.peer]\nbytes_per_s = 230e9\nlatency_s = 1.6e-6\npj_per_byte = 28.0\n"
    return campaign_words(tmp_path_factory.mktemp("links"), sensor_file, CAMPAIGN, more=link)


@pytest.fixture(scope="module")
def peered(words):
    return Path(words.split()[1].removeprefix("sim:"))


COPY = {load.name: load for load in COPIES}


def test_data_over_a_link_go_at_most_at_its_rate(loads, peered):
    with open_simulated(str(peered)) as board:
        links = board.world.profile.link
        for name, load in (loads | COPY).items():
            point = board.world.load_generated(load)(1410.0)
            moved = load.bytes_moved if isinstance(load, CopyLoad) else load.link_bytes()
            most = load_gpu(BOARD).dram_bytes_per_s if load.link == "device" else links[load.link].bytes_per_s
            rate = moved / point.gpu_s
            assert rate <= most, name
            assert rate >= 0.3 * most or name == "peer_chase", name
            assert point.added_w > 0.0


def test_a_board_alone_refuses_a_peer_by_name(loads):
    with open_simulated(BOARD) as simulated, open_fake_board(kernel_s=20e-6, computes=False) as real:
        for runner in (simulated.runner, real.runner):
            for load in (loads["peer_read"], loads["peer_chase"], COPY["copy_peer"]):
                with pytest.raises(RunnerError, match=f"{load.operator.operator}: needs the memory of another GPU"):
                    runner.prepare_generated(load)


@pytest.mark.parametrize("load", COPIES, ids=lambda load: load.name)
@pytest.mark.parametrize("damaged", [False, True])
def test_a_copy_arrives_on_the_runner_over_cupy_or_is_noticed(load, damaged):
    with open_fake_board(kernel_s=20e-6, boards=2) as board:
        board.world.damages_copies = damaged
        prepared = board.runner.prepare_generated(replace(load, bytes_moved=1 << 16))
        assert prepared.corrupted == (f"{load.name}: 1 of 65536 bytes arrived changed" if damaged else "")
        assert (prepared.library, prepared.kernel_name) == ("copy engine", load.name)
        board.runner.run(prepared, 2)  # warms up
        board.world.launched.clear()
        assert board.runner.run(prepared, 9).launches == 9
        assert board.world.launched == ["memcpyPeer" if load.link == "peer" else "memcpy"] * 9


def test_rows_of_links_have_a_rate_and_an_energy_a_byte(words, peered, toolchain):
    dataset, played, record = (peered.with_name(name) for name in ("links.parquet", "played.parquet", "links.rec"))
    assert called(f"{words} --out {dataset} --record {record}") == 0
    assert called(changed(words, f"--out {played} --gpu replay:{record}")) == 0
    table = read_kernel_dataset(dataset).table
    assert table.equals(read_kernel_dataset(played).table)
    found = read_instruction_rows(Table.of(table, Path("x")))
    rows, rejected = found.instructions, list(found.rejected)
    assert rejected == []
    found = link_energies(rows)
    assert set(found) == {"host_read.O3", "host_write.O3", "peer_read.O3", *COPY}
    planted = load_board(str(peered)).link
    for name, one in found.items():
        assert one.runs == 1
        assert 0.0 < one.std_j < 0.2 * one.j_per_byte
        if one.link != "device":
            each = planted[one.link].pj_per_byte * 1e-12
            assert one.j_per_byte > 0.95 * each, name  # what holds the board awake comes on top
    assert found["copy_host_to_device"].bytes_per_s == pytest.approx(planted["host"].bytes_per_s, rel=0.02)
    assert found["copy_peer"].bytes_per_s == pytest.approx(planted["peer"].bytes_per_s, rel=0.02)
    assert found["copy_device_to_device"].link == "device"
    assert np.isfinite([one.bytes_per_s for one in found.values()]).all()
