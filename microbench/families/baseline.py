"""What runs before anything is measured: nothing at all, a loop of next to nothing, sleeping warps; and copies by the copy engines.

The assembler removes a loop that does nothing, so the empty one keeps a single product.
"""

from typing import Final

from microbench.families.frames import ITERATIONS, LANES, RESULT_WORD, RESULTS, store_word
from microbench.kernel import Buffer, Check, Expectation, HostLoad, Kernel, Work
from microbench.toolchain.ptx import entry_text, loop_operations

SLEEP_NS: Final = 1_000_000
"""The longest nap that nanosleep takes: 1 ms (PTX ISA, nanosleep)."""

COPY_BYTES: Final = 1 << 30
"""One copy: 1 GiB, 20 ms over a 50 GB/s link, so that its launch does not count."""

ARGUMENTS: Final = (RESULTS, ITERATIONS, LANES)
WORDS: Final = Buffer(name="results", slots=(RESULT_WORD,), written=True)


def _kernel(name: str, instruction: str, body: list[str], expectation: Expectation) -> Kernel:
    text = entry_text(
        name=name,
        arguments=ARGUMENTS,
        registers={"b32": ("word",), "b64": ("target",)},
        before=["mov.b32 word, thread;"],
        body=body,
        after=store_word("word"),
    )
    return Kernel(
        name=name,
        family=name,
        instruction=instruction,
        module="none",
        level="register",
        text=text,
        buffers=(WORDS,),
        arguments=ARGUMENTS,
        work=Work(operations=loop_operations(text)),
        expectation=expectation,
        check=Check(),
        patterns=("random",),
    )


KERNELS: Final = (
    _kernel("empty_loop", "mad.lo.u32", ["mad.lo.u32 word, word, lane, active_lanes;"], Expectation(opcodes=("IMAD",), fewest=1, most=1)),
    _kernel(
        "nanosleep_resident",
        "nanosleep.u32",
        [f"nanosleep.u32 {SLEEP_NS};"],
        Expectation(opcodes=("NANOSLEEP",), fewest=1, most=1),
    ),
)
"""Baselines with a kernel."""

HOST_LOADS: Final = (
    HostLoad(name="idle", family="idle"),
    HostLoad(name="copy_host_to_device", family="copy", origin="host", target="device", bytes_moved=COPY_BYTES),
    HostLoad(name="copy_device_to_host", family="copy", origin="device", target="host", bytes_moved=COPY_BYTES),
    HostLoad(name="copy_device_to_device", family="copy", origin="device", target="device", bytes_moved=COPY_BYTES),
    HostLoad(name="copy_peer", family="copy", origin="device", target="peer", bytes_moved=COPY_BYTES),
)
"""Loads without a kernel: idle (a context held, clocks locked), and copies by the copy engines."""
