"""Generated kernels, copies and links in a campaign: named, refused, planned, run on every kind of runner, sampled, kept in a dataset."""

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collector.bench import open_simulated
from collector.campaigns.files import campaign_from_document
from collector.dataset.reader import read_kernel_dataset
from collector.devices.protocols import PowerReadings
from collector.errors import CampaignError, RunnerError
from collector.sensing.baselines import sampled_energies_j
from collector.simulated.profile import load_board
from estimator import load_gpu
from fitter.instructions.section import link_energies
from fitter.rows.instruction_dataset import read_instruction_rows
from fitter.rows.tables import Table
from microbench.kernel import SCALARS
from microbench.loads.copies import COPIES, CopyLoad
from microbench.loads.generated import LoadGroup, generated_loads
from microbench.toolchain.compile import Toolchain
from tests.collector.campaigns import ONE_SOFTMAX, SHORT_HEAD, campaign_words
from tests.microbench.interpreter import execute
from tests.microbench.interpreter.program import parse
from tests.microbench_library.conftest import open_fake_board
from tests.words import answer, called, changed, one_line, refused, told

BOARD = "a100-pcie-40gb"
CAMPAIGN = f"""{SHORT_HEAD}
[[instructions]]
kernels = ["ffma_k8_u64"]
modes = ["full", "single"]

[[instructions]]
kernels = ["l2_stream"]
"""


@pytest.fixture(scope="module")
def loads(toolchain):
    """Some loads by kernel, mode, lanes and blocks."""
    groups = [
        LoadGroup(kernels=("ffma_k8_u64", "ffma_k1_u64"), modes=("full", "lane_sweep", "sm_sweep")),
        LoadGroup(kernels=("ffma_k8_u64",), pattern="zero"),
        LoadGroup(kernels=("lds_stream", "l2_stream", "dram_read")),
    ]
    found, skipped = generated_loads(groups, load_gpu(BOARD), toolchain)
    assert not skipped
    return {(load.kernel.name, load.launch.mode, load.launch.pattern, load.launch.active_lanes, load.launch.blocks): load for load in found}


def one(loads, *start):
    return [load for key, load in loads.items() if key[: len(start)] == start]


def test_data_pass_every_level_on_their_way_to_the_registers(loads):
    (dram,), (l2,), (shared,) = (one(loads, name) for name in ("dram_read", "l2_stream", "lds_stream"))
    counts = dram.transactions()
    assert counts["dram"] == counts["l2"] == 4 * counts["l1"] > 0
    assert counts["dram"] * 32 == dram.kernel.work.bytes_moved["dram"] * dram.launch.active_threads * dram.launch.iterations
    assert (l2.transactions()["dram"], shared.transactions()["l2"]) == (0.0, 0.0)


def points(loads):
    """What the simulated board does under each load, at its highest clock."""
    with open_simulated(BOARD) as board:
        return [board.world.load_generated(load)(1410.0) for load in loads]


def test_the_simulated_board_tells_loads_apart_as_silicon_does(loads):
    lanes = sorted(one(loads, "ffma_k8_u64", "lane_sweep"), key=lambda load: load.launch.active_lanes)
    times, powers = zip(*((point.gpu_s, point.added_w) for point in points(lanes)), strict=True)
    assert np.ptp(times) < 0.001 * times[0]
    steps = np.diff(powers) / np.diff([load.launch.active_lanes for load in lanes])
    assert np.ptp(steps) < 0.05 * steps.min()  # the same for every lane, but for the sag of the voltage
    (plain,) = one(loads, "ffma_k8_u64", "full", "random")
    longer = replace(plain, launch=replace(plain.launch, iterations=3 * plain.launch.iterations))
    first, zero, third = points([plain, one(loads, "ffma_k8_u64", "full", "zero")[0], longer])
    assert zero.added_w < 0.9 * first.added_w
    assert zero.gpu_s == pytest.approx(first.gpu_s, rel=1e-3)
    assert third.gpu_s == pytest.approx(3.0 * first.gpu_s, rel=1e-3)
    assert third.added_w == pytest.approx(first.added_w, rel=5e-3)
    few = [next(load for load in one(loads, name, "sm_sweep") if load.launch.blocks == 1) for name in ("ffma_k1_u64", "ffma_k8_u64")]
    chained, parallel = (point.gpu_s / load.launch.iterations for point, load in zip(points(few), few, strict=True))
    assert chained > 1.05 * parallel, "few warps do not hide the latency of a dependent chain"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, toolchain, sensor_file):
    path = tmp_path_factory.mktemp("generated") / "few.parquet"
    assert called(f"{campaign_words(path.parent, sensor_file, CAMPAIGN)} --out {path}") == 0
    return path


def test_a_row_says_what_ran_to_the_digest_of_its_machine_code(dataset):
    rows = {(row["operator"], row["launch_mode"]): row for row in read_kernel_dataset(dataset).table.to_pylist()}
    assert set(rows) == {("ffma_k8_u64", "full"), ("ffma_k8_u64", "single"), ("l2_stream", "full")}
    row = rows["ffma_k8_u64", "full"]
    assert row["instruction"] == "fma.rn.f32"
    assert '"FFMA":64' in row["loop_opcodes"]
    assert row["loop_operations"] == '{"fma.rn.f32":64.0}'
    assert len(row["cubin_sha256"]) == len(row["ptx_sha256"]) == 64
    assert row["assembler"].endswith("-O3 sm_80")
    assert row["active_threads"] == 32 * row["active_warps"] == 108 * row["blocks_per_sm"] * 256
    assert row["idle_before_w"] is not None
    assert row["energy_sma_j"] >= row["energy_mtsm_j"] > 0
    assert (rows["ffma_k8_u64", "single"]["active_threads"], rows["ffma_k8_u64", "single"]["active_warps"]) == (1, 1)
    assert rows["l2_stream", "full"]["l2_transactions"] > 0


def readings(power_w, period_s):
    stamps = (np.arange(len(power_w)) * period_s * 1e9).astype(np.int64)
    return PowerReadings(field="instant", host_ns=stamps, power_w=np.array(power_w))


def test_each_way_of_sampling_reads_what_its_authors_say():
    trace = readings([50.0, 50.0, 100.0, 110.0, 120.0, 90.0, 60.0], 0.02)
    found = sampled_energies_j(trace, 0.04, 0.1)
    assert found["mtsm"] == pytest.approx(0.06 * np.mean([100.0, 110.0, 120.0, 90.0]))
    assert found["sma"] == pytest.approx(0.06 * 120.0)
    assert found["papi"] == pytest.approx(0.06 * 90.0)
    for unknown in ([], [np.nan] * 4):
        assert all(np.isnan(joule) for joule in sampled_energies_j(readings(unknown, 0.02), 0.0, 0.06).values())


TWO_MODES = f"""{SHORT_HEAD}
[[instructions]]
kernels = ["ffma_k8_u64", "iadd3_k8_u64"]
modes = ["full", "single"]
"""


def loads_named(toolchain, gpu, *names):
    found, _ = generated_loads([LoadGroup(kernels=names)], load_gpu(gpu), toolchain)
    return {load.kernel.name: load for load in found}


def test_a_corrupted_kernel_is_marked_in_its_rows_and_not_fitted(toolchain, sensor_file, tmp_path):
    out = tmp_path / "few.parquet"
    words = campaign_words(tmp_path, sensor_file, TWO_MODES, more='[faults]\ncorrupted = "ffma_k8_u64"\n')
    assert called(f"{words} --out {out} --strict") == 3  # done, with rows that are no good
    table = read_kernel_dataset(out).table
    flags = {(row["operator"], row["launch_mode"]): set(row["flags"]) for row in table.to_pylist()}
    assert {key for key, own in flags.items() if "result_wrong" in own} == {("ffma_k8_u64", "full"), ("ffma_k8_u64", "single")}
    assert {key for key, own in flags.items() if "low_confidence" in own} == {("ffma_k8_u64", "single"), ("iadd3_k8_u64", "single")}
    found = read_instruction_rows(Table.of(table, Path("few")))
    rows, rejected = found.instructions, list(found.rejected)
    assert [row.reason for row in rejected] == ["RESULT_WRONG", "RESULT_WRONG"]
    assert {row.kernel for row in rows.rows} == {"iadd3_k8_u64"}


def computing(kernel):
    """What a compiled entry does on the stand-in for CuPy: its own text, executed."""

    def work(grid, block, arguments):
        held = [int(value) if argument in SCALARS else _memory(value) for argument, value in zip(kernel.arguments, arguments, strict=True)]
        done = execute(parse(kernel.text, kernel.declarations), held, int(np.prod(grid)), int(np.prod(block)))
        for argument, value in zip(kernel.arguments, arguments, strict=True):
            if argument not in SCALARS:
                value.view(np.uint8)[...] = done.buffers[argument]

    return work


def _memory(array):
    return np.frombuffer(ctypes.string_at(int(array.data.ptr), array.nbytes), dtype=np.uint8)


def test_a_real_board_is_checked_once_for_each_kernel_and_code(toolchain):
    loads = loads_named(toolchain, "h200-sxm", "ffma_k8_u64", "iadd3_k8_u64", "dram_copy")
    small = {name: replace(load, launch=load.kernel.check_launch()) for name, load in loads.items()}
    entries = {name: computing(load.kernel) for name, load in small.items()}

    def flipped(grid, block, arguments):
        entries["iadd3_k8_u64"](grid, block, arguments)
        arguments[1].view(np.uint8)[77] ^= 4

    with open_fake_board(kernel_s=20e-6, raw_kernels={**entries, "iadd3_k8_u64": flipped}) as board:
        complaints = {name: board.runner.prepare_generated(load).corrupted for name, load in small.items()}
        assert complaints.pop("iadd3_k8_u64").startswith("iadd3_k8_u64: results on random operands are not those shipped")
        assert set(complaints.values()) == {""}
        board.world.launched.clear()
        again = [board.runner.prepare_generated(load).corrupted for load in small.values()]
        assert board.world.launched == []
        assert sum(map(bool, again)) == 1
        board.runner.prepare_generated(replace(small["ffma_k8_u64"], module=replace(small["ffma_k8_u64"].module, digest="0" * 64)))
        assert board.world.launched == ["ffma_k8_u64"]


LINKS = f"""{SHORT_HEAD}
[[instructions]]
kernels = ["host_*", "peer_read", "copy_*"]
"""


@pytest.fixture(scope="module")
def over_links(toolchain):
    return loads_named(toolchain, BOARD, "host_*", "peer_*")


@pytest.fixture(scope="module")
def words(tmp_path_factory, sensor_file):
    """A campaign on a simulated board with another one beside it."""
    link = "[link.peer]\nbytes_per_s = 230e9\nlatency_s = 1.6e-6\npj_per_byte = 28.0\n"
    return campaign_words(tmp_path_factory.mktemp("links"), sensor_file, LINKS, more=link)


@pytest.fixture(scope="module")
def peered(words):
    return Path(words.split()[1].removeprefix("sim:"))


COPY = {load.name: load for load in COPIES}


def test_data_over_a_link_go_at_most_at_its_rate(over_links, peered):
    with open_simulated(str(peered)) as board:
        links = board.world.profile.link
        for name, load in (over_links | COPY).items():
            point = board.world.load_generated(load)(1410.0)
            moved = load.bytes_moved if isinstance(load, CopyLoad) else load.link_bytes()
            most = load_gpu(BOARD).dram_bytes_per_s if load.link == "device" else links[load.link].bytes_per_s
            rate = moved / point.gpu_s
            assert rate <= most, name
            assert rate >= 0.3 * most or name == "peer_chase", name
            assert point.added_w > 0.0


def test_a_board_alone_refuses_a_peer_by_name(over_links):
    with open_simulated(BOARD) as simulated, open_fake_board(kernel_s=20e-6, computes=False) as real:
        for runner in (simulated.runner, real.runner):
            for load in (over_links["peer_read"], over_links["peer_chase"], COPY["copy_peer"]):
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


@pytest.mark.parametrize(
    "group, complaint",
    [
        ({"kernels": ["ffma*"], "modes": ["half"]}, r"\.modes\[0\] = 'half' is unknown; known: full, sm_sweep"),
        ({"kernels": ["ffma*"], "level": "O9"}, r"\.level = 'O9'"),
        ({"kernels": ["ffma"]}, r"\.kernels has no generated kernel 'ffma'; `collect kernels` lists them"),
        ({"kernels": ["ffma*"], "without": ["*"]}, r"\.without = \['\*'\] leaves none of the kernels"),
        ({"kernels": ["copy_*"], "modes": ["sm_sweep"]}, " asks for what none has: copy_host_to_device: no mode sm_sweep"),
        ({"kernels": ["copy_peer"], "pattern": "zero"}, " asks for what none has: copy_peer: no pattern zero; there is random"),
    ],
)
def test_a_group_that_names_nothing_that_can_be_is_refused_with_its_path(group, complaint):
    with one_line(CampaignError, r"^test: instructions\[1\]" + complaint):
        campaign_from_document({"name": "x", "instructions": [{"kernels": ["empty_loop"]}, group]}, "test")


@pytest.mark.parametrize("way", [{"modes": ("sm_sweep",)}, {"pattern": "zero"}, {"level": "O0"}], ids=lambda way: next(iter(way)))
def test_copies_beside_kernels_are_left_out_by_name_where_they_cannot_be_as_asked(way, toolchain):
    asked = LoadGroup(kernels=("ffma_k8_u64", "copy_*"), **way)
    loads, skipped = generated_loads([asked], load_gpu(BOARD), toolchain)
    assert {load.operator.operator for load in loads} == {"ffma_k8_u64"}
    ((reason, count),) = skipped.items()
    assert (reason.partition(",")[0], count) == (COPIES[0].name, len(COPIES)), "said once"
    both, _ = generated_loads([LoadGroup(kernels=("copy_*",)), asked], load_gpu(BOARD), toolchain)
    assert both == (*loads, *COPIES)


def test_copies_need_no_assembler():
    nowhere = Toolchain(ptxas=Path("/none"), nvdisasm=Path("/none"), ptxas_version="")
    some = LoadGroup(kernels=("copy_*",), without=("copy_d*", "copy_peer"))
    assert generated_loads([some], load_gpu(BOARD), nowhere) == (COPIES[:1], {})


def test_a_gpu_that_nothing_is_assembled_for_runs_the_rest_of_a_campaign(tmp_path):
    """sm_70, which a disassembler of CUDA 13.1 and later does not read: copies and library kernels are measured, the others named."""
    campaign = tmp_path / "mixed.toml"
    names = ("ffma_k8_u64", "l2_stream", "mma_*", "copy_*", "host_read")
    campaign.write_text(f"{SHORT_HEAD}\n[[instructions]]\nkernels = {list(names)}\n{ONE_SOFTMAX}")
    words = f"--campaign {campaign} --gpu sim:v100-pcie-32gb --freqs current --dry-run".split()
    plan = answer(*words)
    assert plan["kernels"] == {"instruction": len(COPIES), "softmax": 1}
    ((reason, count),) = plan["skipped"].items()
    assert reason.startswith("ffma_k8_u64, ")
    assert f" and {count - 3} more: sm_70 needs ptxas and nvdisasm of a CUDA 12 toolkit" in reason
    campaign.write_text(f'{SHORT_HEAD}\n[[instructions]]\nkernels = ["ffma_k8_u64"]\n')
    refused(1, "has no kernel that this board runs (ffma_k8_u64: sm_70 needs ptxas", *words)


def test_the_list_names_what_a_campaign_takes_and_how():
    listed = answer("kernels")
    assert len({one["name"] for one in listed}) == len(listed)
    for one in listed:  # each name by itself, in each of its ways, is a group that is not refused
        group = {"kernels": [one["name"]], "modes": one["modes"], "pattern": one["patterns"][0], "level": one["levels"][-1]}
        campaign_from_document({"name": "x", "instructions": [group]}, "test")


def test_the_list_goes_by_family():
    out, _ = told("kernels --families wgmma_f16,copy")
    assert [line.split()[0] for line in out.splitlines()] == [
        "name",
        "wgmma_f16_n64",
        "wgmma_f16_n128",
        "wgmma_f16_n256",
        *(copy.name for copy in COPIES),
    ]
    for families in (" ,", "ffam"):
        refused(2, "no family is named", "kernels", "--families", families)
