"""Kernels executed by the interpreter: what they must leave, and the file of expected results that is shipped.

Written anew, after a look at what changed, by:  python -m tests.microbench.executed
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from microbench.check import DIGEST_BYTES, EXPECTED, result_name, results_digest, written_bytes
from microbench.families import KERNELS, SWEEP
from microbench.kernel import Buffers, Kernel, Launch
from microbench.operands import argument_value, contents, record_type
from tests.microbench.interpreter import Execution, execute
from tests.microbench.interpreter.memory import buffer_address
from tests.microbench.interpreter.program import parse

SHARE_OF_TOLERANCE = 1.0 / 16.0
"""Digits below this share of a result's tolerance are not shipped."""

SHIPPED = [kernel for kernel in (*KERNELS, *SWEEP) if kernel.check.reference is None]


def filled_buffers(kernel: Kernel, launch: Launch) -> dict[str, NDArray[Any]]:
    """The contents of every buffer, at the interpreter's addresses: it numbers buffers as the arguments name them."""
    by_name = {buffer.name: buffer for buffer in kernel.buffers}
    in_order = [by_name[argument.pointer] for argument in kernel.arguments if argument.pointer]
    return {buffer.name: contents(buffer, launch, buffer_address(number)) for number, buffer in enumerate(in_order)}


def interpret(kernel: Kernel, launch: Launch) -> Execution:
    """Execute the kernel's text for a launch."""
    buffers = filled_buffers(kernel, launch)
    arguments = [buffers[argument.pointer] if argument.pointer else argument_value(argument, launch) for argument in kernel.arguments]
    return execute(parse(kernel.text, kernel.declarations), arguments, launch.blocks, launch.threads_per_block)


def executed_results(kernel: Kernel, launch: Launch) -> Buffers:
    """What the written buffers hold after a launch: records by buffer name."""
    if kernel.check.reference is not None:
        return kernel.check.reference(launch, filled_buffers(kernel, launch))
    executed = interpret(kernel, launch).buffers
    return {buffer.name: executed[buffer.name].view(record_type(buffer)) for buffer in kernel.buffers if buffer.written}


def shortened(kernel: Kernel, results: Buffers) -> Buffers:
    """Results without the digits that no comparison looks at."""
    short = {name: records.copy() for name, records in results.items()}
    for records in short.values():
        for name in records.dtype.names or ():
            column = records[name]
            scale = np.max(np.abs(column), initial=0.0, where=np.isfinite(column)) if column.dtype.kind == "f" else 0.0
            if scale:
                step = 2.0 ** np.floor(np.log2(kernel.check.relative_tolerance * SHARE_OF_TOLERANCE * scale))
                records[name] = np.round(column / step) * step
    return short


def main() -> None:
    """Execute every kernel's small launches and write the file."""
    exact: dict[str, bytes] = {}
    others: dict[str, NDArray[np.uint8]] = {}
    for kernel in SHIPPED:
        for pattern in kernel.patterns:
            results = executed_results(kernel, kernel.check_launch(pattern))
            if kernel.check.relative_tolerance == 0.0:
                exact[result_name(kernel, pattern)] = results_digest(kernel, results)
            else:
                others[result_name(kernel, pattern)] = np.frombuffer(written_bytes(kernel, shortened(kernel, results)), dtype=np.uint8)
    digests = np.frombuffer(b"".join(exact.values()), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
    np.savez_compressed(EXPECTED, exact=np.array(list(exact)), digests=digests, **others)  # type: ignore[arg-type]
    print(EXPECTED, EXPECTED.stat().st_size)


if __name__ == "__main__":
    main()
