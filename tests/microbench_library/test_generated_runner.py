"""Generated kernels: arguments in their order, launches counted, results read back."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from microbench.errors import KernelFailedError
from microbench.kernel import Buffer, Expectation, Kernel, Launch, Slot, Work
from microbench.operands import DRAWN_RECORDS, contents
from microbench.runners.cupy_device import open_cupy_device
from microbench.runners.library_runner import load_generated
from tests.microbench_library.cuda_fake import PCI_ADDRESS, World, fake_cupy

ENTRY = "add_turns"
WORD = Slot(name="value", kind="u32", low=0.0, high=9.0)
KERNEL = Kernel(
    name=ENTRY,
    family="test",
    instruction="add.u32",
    module="cuda",
    level="register",
    text=".visible .entry add_turns()",
    buffers=(Buffer(name="source", slots=(WORD,)), Buffer(name="result", slots=(WORD,), written=True)),
    arguments=("source", "result", "iterations", "active_lanes"),
    work=Work(operations={"add.u32": 1.0}),
    expectation=Expectation(opcodes=("IADD3",), fewest=1, most=1),
)
LAUNCH = Launch(mode="full", blocks=2, threads_per_block=32, iterations=5, active_lanes=16)
SOURCE = contents(KERNEL.buffers[0], LAUNCH)["value"]
CUBIN = b"\x7fELF"


def add_turns(grid, block, arguments):
    source, result, iterations, lanes = arguments
    assert (grid, block) == ((2,), (32,))
    assert all(isinstance(value, np.uint32) for value in (iterations, lanes))
    assert int(lanes) == 16
    result.view(np.uint32)[...] = source.view(np.uint32) + iterations


@pytest.fixture
def world():
    return World(kernel_s=40e-6)


@pytest.fixture
def device(world):
    with open_cupy_device(PCI_ADDRESS, fake_cupy(world, {ENTRY: add_turns})) as opened:
        yield opened


def test_arguments_come_in_their_order_and_results_come_back(device, world):
    loaded = load_generated(device, KERNEL, LAUNCH, CUBIN, world.now_ns)
    assert np.array_equal(loaded.results()["result"]["value"], SOURCE + 5)
    assert len(world.launched) == 1, "a lone launch is all that runs"


def test_what_does_not_fit_is_refused(device, world):
    world.total_bytes = 100
    with pytest.raises(KernelFailedError, match="smaller footprint"):
        load_generated(device, KERNEL, LAUNCH, CUBIN, world.now_ns)


@pytest.mark.parametrize("location", ["host", "peer"])
def test_a_buffer_elsewhere_is_filled_reached_by_its_address_and_read_back(location):
    seen = []

    def elsewhere(grid, block, arguments):
        source, result, iterations, _ = arguments
        assert isinstance(source, np.uint64)
        seen.append(int(source))
        words, held = (np.ctypeslib.as_array((ctypes.c_uint32 * len(SOURCE)).from_address(int(place))) for place in (source, result))
        held[...] = words + iterations

    world = World(kernel_s=40e-6, boards=2)
    moved = replace(KERNEL, buffers=tuple(replace(buffer, location=location) for buffer in KERNEL.buffers))
    with open_cupy_device(PCI_ADDRESS, fake_cupy(world, {ENTRY: elsewhere})) as device:
        for kernel in (moved, moved):  # the way to a peer is opened once
            loaded = load_generated(device, kernel, LAUNCH, CUBIN, world.now_ns)
            assert np.array_equal(loaded.results()["result"]["value"], SOURCE + 5)
    assert len(seen) == 2
    assert world.peers_open == ({1} if location == "peer" else set())


@pytest.mark.parametrize("where", ["device", "host"])
@pytest.mark.parametrize("drawn", [1, 7, 64, 1000])
def test_a_buffer_longer_than_what_is_drawn_repeats_it(device, where, drawn):
    values = np.random.default_rng(1).integers(0, 256, drawn, dtype=np.uint8)
    placed = device.place(where, 1000, "test")
    device.fill(placed, values)
    assert np.array_equal(device.contents(placed), np.resize(values, 1000))


def test_no_more_than_some_records_are_drawn_for_a_buffer():
    wide = replace(LAUNCH, blocks=1 << 20)
    assert len(contents(KERNEL.buffers[0], wide)) == DRAWN_RECORDS < wide.threads
