"""Every kernel of the catalogue, executed by the interpreter: right, counted right, alive, and a corrupted one is noticed."""

from dataclasses import replace

import numpy as np
import pytest

from microbench.errors import ResultError
from microbench.families.catalogue import KERNELS
from microbench.numbers import decode
from microbench.operands import record_type, verify
from tests.microbench.executed import SHIPPED, executed_results, interpret
from tests.microbench.interpreter.program import InterpreterError, parse
from tests.microbench.kernels import kernel_named

INTERPRETED = [kernel for kernel in KERNELS if not kernel.name.startswith("wgmma")]
COUNTED_APART = {"tma_bulk"}
"""One thread runs the loop and its control; the others wait."""

INSENSITIVE = {"nanosleep_resident"}
"""What it does leaves no trace in its result."""

MIN_FLIPS = 0.3
"""Bits of an accumulator that must change in each operation, on average: one-bit results change half of the time."""


def small(kernel, iterations):
    return replace(kernel.check_launch(), blocks=1, threads_per_block=kernel.block_threads if kernel.fixed else 32, iterations=iterations)


@pytest.mark.parametrize("kernel", INTERPRETED, ids=lambda kernel: kernel.name)
def test_work_is_counted_as_it_is_executed_and_values_stay_finite_and_alive(kernel):
    short, long = (interpret(kernel, small(kernel, turns)) for turns in (2, 3))
    turn = {name: (count - short.counts.get(name, 0)) / small(kernel, 1).active_threads for name, count in long.counts.items()}
    if kernel.name not in COUNTED_APART:
        for control in ("sub.u32", "setp.ne.u32", "bra"):
            turn[control] -= 1
        assert {name.replace("__", "::"): count for name, count in turn.items() if count} == dict(kernel.work.operations)
    for buffer in kernel.buffers:
        for slot in buffer.slots if buffer.written else ():
            column = long.buffers[buffer.name].view(record_type(buffer))[slot.name]
            assert np.all(np.isfinite(decode(np.ascontiguousarray(column), slot.kind)))
    if kernel.level == "register" and kernel.module in ("cuda", "sfu"):
        flips = sum(long.flips.get(f"d{chain}", 0) - short.flips.get(f"d{chain}", 0) for chain in range(kernel.chains))
        assert flips / (32 * kernel.unroll) > MIN_FLIPS


@pytest.mark.parametrize("kernel", SHIPPED, ids=lambda kernel: kernel.name)
def test_what_is_shipped_is_what_the_text_leaves_and_one_wrong_value_is_noticed(kernel):
    for pattern in kernel.patterns:
        results = executed_results(kernel, kernel.check_launch(pattern))
        verify(kernel, pattern, results)
    buffer = next(buffer for buffer in kernel.buffers if buffer.written)
    column = results[buffer.name][buffer.slots[-1].name]
    bits = np.ascontiguousarray(column).view(f"u{column.dtype.itemsize}").copy()
    bits[-1] ^= bits.dtype.type(1 << (bits.dtype.itemsize * 8 - 2))
    results[buffer.name][buffer.slots[-1].name] = bits.view(column.dtype)
    with pytest.raises(ResultError, match=f"^{kernel.name}: (1 of|results on {pattern})"):
        verify(kernel, pattern, results)
    with pytest.raises(ResultError, match="no result of this text"):
        verify(replace(kernel, text=kernel.text + "\n"), pattern, results)


PLACED = [kernel for kernel in INTERPRETED if ".shared .align" in kernel.text or ".local .align" in kernel.text]


@pytest.mark.parametrize("kernel", PLACED, ids=lambda kernel: kernel.name)
def test_a_result_does_not_depend_on_where_shared_and_local_memory_lie(kernel):
    """On an H200 a thread's variables begin at 0xfffcc0; results with an address in them were "wrong" there."""
    program, launch, moved = parse(kernel.text, kernel.declarations), small(kernel, 1), {}
    for space in ("shared", "local"):
        moved[space] = {name: place + 1024 for name, place in getattr(program, space).items()}
        moved[f"{space}_bytes"] = getattr(program, f"{space}_bytes") + 1024
    first, second = (interpret(kernel, launch, one).buffers for one in (program, replace(program, **moved)))
    for buffer in kernel.buffers:
        if buffer.written:
            assert np.array_equal(first[buffer.name], second[buffer.name])


MUTABLE = [kernel for kernel in INTERPRETED if kernel.name not in INSENSITIVE][::2]
LAST_WORK = ("add.rn.f32 x, x, y", "add.rn.f32 sum", "add.rn.f32 heat", "fma.rn.f32 sum", "sub.rn.f32 call", "add.rn.f32 weight")


@pytest.mark.parametrize("kernel", MUTABLE, ids=lambda kernel: kernel.name)
def test_a_loop_that_lost_its_last_instruction_is_noticed(kernel):
    head, tail = kernel.text.split("    sub.u32 left, left, 1;")
    lines = head.splitlines()
    last = max(place for place, line in enumerate(lines) if line.strip().startswith((kernel.instruction, *LAST_WORK)))
    damaged = replace(kernel, text="\n".join([*lines[:last], *lines[last + 1 :], "    sub.u32 left, left, 1;" + tail]))
    try:
        results = executed_results(damaged, kernel.check_launch())
    except InterpreterError:
        return
    with pytest.raises(ResultError):
        verify(kernel, "random", results)


def test_idle_lanes_do_no_work_and_leave_no_result():
    kernel = kernel_named("ffma_k8_u64")
    launch = replace(small(kernel, 2), active_lanes=8)
    full = interpret(kernel, small(kernel, 2)).counts[kernel.instruction]
    assert interpret(kernel, launch).counts[kernel.instruction] * 4 == full
    results = executed_results(kernel, launch)["results"]
    assert np.all(results["d0"][8:] == 0)
    assert np.any(results["d0"][:8] != 0)
