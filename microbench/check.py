"""Is a result right?  The kernel's own text, executed by the interpreter, says what must come out."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.quantities import Array
from microbench.errors import ResultError
from microbench.interpreter import Execution, execute
from microbench.interpreter.memory import buffer_address
from microbench.interpreter.program import parse
from microbench.kernel import Buffer, Buffers, Kernel, Launch, Pattern
from microbench.numbers import decode
from microbench.operands import argument_value, contents, record_type


def filled_buffers(kernel: Kernel, launch: Launch) -> dict[str, NDArray[Any]]:
    """The contents of every buffer, at the interpreter's addresses."""
    return {buffer.name: contents(buffer, launch, buffer_address(number)) for number, buffer in enumerate(_in_order(kernel))}


def interpret(kernel: Kernel, launch: Launch) -> Execution:
    """Execute the kernel's text for a launch.  Raises InterpreterError for a text outside the subset."""
    buffers = filled_buffers(kernel, launch)
    arguments = [buffers[argument.pointer] if argument.pointer else argument_value(argument, launch) for argument in kernel.arguments]
    return execute(parse(kernel.text, kernel.declarations), arguments, launch.blocks, launch.threads_per_block)


def expected_results(kernel: Kernel, launch: Launch) -> Buffers:
    """What the written buffers must hold after a launch: records by buffer name.

    For the launch that `Kernel.check_launch` gives; others take as long as they are large.
    """
    if kernel.check.reference is not None:
        return kernel.check.reference(launch, filled_buffers(kernel, launch))
    executed = interpret(kernel, launch).buffers
    return {buffer.name: executed[buffer.name].view(record_type(buffer)) for buffer in kernel.buffers if buffer.written}


def verify(kernel: Kernel, launch: Launch, results: Buffers, expected: Buffers | None = None) -> None:
    """Raises ResultError where a written buffer differs from what it must hold, saying where and by how much.

    Exact kernels must agree bit for bit; the others within their tolerance, relative to the largest number of the slot.
    """
    wanted = expected_results(kernel, launch) if expected is None else expected
    for buffer in kernel.buffers:
        if buffer.written:
            _compare(kernel, buffer, results[buffer.name], wanted[buffer.name])


def results_complaint(
    kernel: Kernel, results: Callable[[Launch], Buffers], pattern: Pattern = "random", expected: Buffers | None = None
) -> str:
    """What is wrong with a kernel's results in its small launch, from `results`, which runs it; "" where they are right.

    Raises InterpreterError for a text outside the subset, and what `results` raises.
    """
    launch = kernel.check_launch(pattern)
    try:
        verify(kernel, launch, results(launch), expected)
    except ResultError as error:
        return str(error)
    return ""


def _compare(kernel: Kernel, buffer: Buffer, found: NDArray[Any], wanted: NDArray[Any]) -> None:
    if found.shape != wanted.shape:
        raise ResultError(f"{kernel.name}: buffer {buffer.name} holds {found.size} records, {wanted.size} were expected")
    for slot in buffer.slots:
        got, right = found[slot.name], wanted[slot.name]
        if kernel.check.relative_tolerance == 0.0:
            bad = np.ascontiguousarray(got).view(np.uint8).reshape(got.size, -1) != np.ascontiguousarray(right).view(np.uint8).reshape(
                got.size, -1
            )
            wrong = bad.any(axis=1)
        else:
            wrong = _beyond(
                decode(np.ascontiguousarray(got), slot.kind),
                decode(np.ascontiguousarray(right), slot.kind),
                kernel.check.relative_tolerance,
            )
            wrong = wrong.reshape(got.size, -1).any(axis=1)
        if wrong.any():
            first = int(np.argmax(wrong))
            raise ResultError(
                f"{kernel.name}: {int(wrong.sum())} of {got.size} values of {buffer.name}.{slot.name} are wrong; "
                f"record {first} holds {got[first]}, {right[first]} is right; the launch or the board corrupts results"
            )


def _beyond(got: Array, right: Array, tolerance: float) -> NDArray[np.bool_]:
    scale = float(np.max(np.abs(right), initial=0.0, where=np.isfinite(right))) or 1.0
    with np.errstate(invalid="ignore"):
        return ~((np.abs(got - right) <= tolerance * scale) | (np.isnan(got) & np.isnan(right)))


def _in_order(kernel: Kernel) -> list[Buffer]:
    """The buffers as the arguments name them: the interpreter numbers them so."""
    by_name = {buffer.name: buffer for buffer in kernel.buffers}
    return [by_name[argument.pointer] for argument in kernel.arguments if argument.pointer]
