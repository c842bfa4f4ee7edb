"""Kernels executed by the interpreter: what they must leave, and the file of expected results that is shipped.

Written anew, after a look at what changed, by:  python -m tests.microbench.executed
"""

import numpy as np

from microbench.families.catalogue import KERNELS, SWEEP
from microbench.kernel import SCALARS
from microbench.numbers import decode
from microbench.operands import DIGEST_BYTES, EXPECTED, argument_value, contents, record_type, result_name, results_digest, written_bytes
from tests.microbench.interpreter import execute
from tests.microbench.interpreter.machine import buffer_address
from tests.microbench.interpreter.program import parse

SHARE_OF_TOLERANCE = 1.0 / 16.0
"""Digits below this share of a result's tolerance are not shipped."""

SHIPPED = (*KERNELS, *SWEEP)


def filled_buffers(kernel, launch):
    """The contents of every buffer, at the interpreter's addresses: it numbers buffers in their order."""
    return {buffer.name: contents(buffer, launch, buffer_address(number)) for number, buffer in enumerate(kernel.buffers)}


def interpret(kernel, launch, program=None):
    """Execute the kernel's text for a launch, or another program on its operands."""
    buffers = filled_buffers(kernel, launch)
    arguments = [argument_value(argument, launch) if argument in SCALARS else buffers[argument] for argument in kernel.arguments]
    return execute(program or parse(kernel.text, kernel.declarations), arguments, launch.blocks, launch.threads_per_block)


def executed_results(kernel, launch):
    """What the written buffers hold after a launch: records by buffer name."""
    if kernel.name.startswith("wgmma"):
        return {"results": warpgroup_sums(kernel, launch, filled_buffers(kernel, launch)["tiles"]["pair"])}
    executed = interpret(kernel, launch).buffers
    return {buffer.name: executed[buffer.name].view(record_type(buffer)) for buffer in kernel.buffers if buffer.written}


def warpgroup_sums(kernel, launch, tiles):
    """What every block of a product of warpgroups must store: four plain products, odd ones subtracted, and the first once more.

    Tiles of A (64 rows), then of B: core matrices of 8 rows of 16 bytes, one after the other along the rows first, two along the depth.
    """
    values = decode(tiles, kernel.buffers[0].slots[0].kind)
    wide = 2 * len(kernel.buffers[1].slots)
    numbers = values.size // (4 * (64 + wide))  # of a row in one product
    split = 4 * 64 * numbers
    parts = (part.reshape(4, 2, -1, 8, numbers // 2) for part in (values[:split], values[split:]))
    left, right = (part.transpose(0, 2, 3, 1, 4).reshape(4, -1, numbers) for part in parts)
    products = np.einsum("smk,snk->smn", left, right)
    total = launch.iterations * np.einsum("s,smn->mn", [1.0, -1.0, 1.0, -1.0], products) + products[0]
    thread, place = np.arange(128)[:, None], np.arange(wide // 2)[None, :]
    rows = thread // 32 * 16 + thread % 32 // 4 + 8 * (place // 2 % 2)
    own = total[rows, place // 4 * 8 + thread % 4 * 2 + place % 2].astype(np.float32)
    stored = np.zeros(launch.threads, dtype=record_type(kernel.buffers[1]))
    for register in range(wide // 2):
        stored[f"c{register}"] = np.tile(own[:, register], launch.blocks)
    return stored


def shortened(kernel, results):
    """Results without the digits that no comparison looks at."""
    short = {name: records.copy() for name, records in results.items()}
    for records in short.values():
        for name in records.dtype.names or ():
            column = records[name]
            scale = np.max(np.abs(column), initial=0.0, where=np.isfinite(column)) if column.dtype.kind == "f" else 0.0
            if scale:
                step = 2.0 ** np.floor(np.log2(kernel.tolerance * SHARE_OF_TOLERANCE * scale))
                records[name] = np.round(column / step) * step
    return short


def main():
    """Execute every kernel's small launches and write the file."""
    exact = {}
    others = {}
    for kernel in SHIPPED:
        for pattern in kernel.patterns:
            results = executed_results(kernel, kernel.check_launch(pattern))
            if kernel.tolerance == 0.0:
                exact[result_name(kernel, pattern)] = results_digest(kernel, results)
            else:
                others[result_name(kernel, pattern)] = np.frombuffer(written_bytes(kernel, shortened(kernel, results)), dtype=np.uint8)
    digests = np.frombuffer(b"".join(exact.values()), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
    np.savez_compressed(EXPECTED, exact=np.array(list(exact)), digests=digests, **others)
    print(EXPECTED, EXPECTED.stat().st_size)


if __name__ == "__main__":
    main()
