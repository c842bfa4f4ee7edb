"""Generated kernels in a campaign: results are checked before anything is measured, machine code is kept, doubtful rows are marked."""

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np

from collector.cli import main
from collector.dataset import read_kernel_dataset
from estimator.vocabulary.specifications import load_gpu
from fitter.rows.instruction_dataset import read_instruction_rows
from fitter.rows.tables import Table
from microbench.kernel import SCALARS
from microbench.loads.generated import generated_loads
from microbench.loads.groups import LoadGroup
from tests.collector.campaign_texts import SHORT_HEAD
from tests.collector.campaigns import campaign_words
from tests.microbench.interpreter import execute
from tests.microbench.interpreter.program import parse
from tests.microbench_library.conftest import open_fake_board

CAMPAIGN_FILE = f"""{SHORT_HEAD}
[[instructions]]
kernels = ["ffma_k8_u64", "iadd3_k8_u64"]
modes = ["full", "single"]
"""


def loads_of(toolchain, gpu, *names):
    found, _ = generated_loads([LoadGroup(kernels=names)], load_gpu(gpu), toolchain)
    return {load.kernel.name: load for load in found}


def test_a_corrupted_kernel_is_marked_in_its_rows_and_not_fitted(toolchain, calibration, tmp_path):
    out = tmp_path / "few.parquet"
    words = campaign_words(tmp_path, calibration, CAMPAIGN_FILE, more='[faults]\ncorrupted = "ffma_k8_u64"\n')
    assert main([*words, "--out", str(out), "--strict"]) == 3  # done, with rows that are no good
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
    loads = loads_of(toolchain, "h200-sxm", "ffma_k8_u64", "iadd3_k8_u64", "dram_copy")
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
