"""Stall mixes: double-precision additions among loads that hit L1, in steps of a tenth.

GPUJoule's construction: additions never wait for memory, loads do; over the mixes the energy of a stalled cycle separates from
that of an access.  Source: Arunkumar et al., GPUJoule, section IV.
"""

from typing import Final

from microbench.families.frames import (
    ADDRESSES,
    LINE_BYTES,
    MEMORY_THREADS,
    MemoryKernel,
    place,
    region_start,
)
from microbench.families.global_memory import ARGUMENTS, CHASE_STEPS, LINK_BYTES, REGISTERS, RESIDENCE
from microbench.families.table import opcodes
from microbench.kernel import Buffer, Chase, Kernel, Slot

MIX_OPERATIONS: Final = 20
"""Operations of a mix: twenty, so that a tenth is two."""

SHARES_PERCENT: Final = (10, 20, 30, 40, 50, 60, 70, 80, 90)
SUMS: Final = 4
RESULTS: Final = Buffer(name="results", slots=(Slot(name="sum", kind="f64", low=0.0, high=0.0),), written=True)


def _mix(percent: int) -> Kernel:
    """`percent` of the operations are additions, evenly spread among the loads."""
    additions = MIX_OPERATIONS * percent // 100
    loads = MIX_OPERATIONS - additions
    body: list[str] = []
    done = 0
    for operation in range(MIX_OPERATIONS):
        if (operation + 1) * additions // MIX_OPERATIONS > done:
            sign = "sub" if (done // SUMS) % 2 else "add"
            body.append(f"{sign}.rn.f64 sum{done % SUMS}, sum{done % SUMS}, step;")
            done += 1
        else:
            body.append("ld.global.ca.u64 link, [link];")
    link = Slot(name="link", kind="u64", low=0.0, high=0.0)
    return MemoryKernel(
        name=f"stall_mix_{percent}",
        family="stall_mix",
        instruction="ld.global.ca.u64",
        module="shared",
        level="l1",
        buffers=(Buffer(name="data", slots=(link,), per="region", chase=Chase(stride_entries=MEMORY_THREADS)), RESULTS),
        arguments=ARGUMENTS,
        registers={
            "b64": (*REGISTERS["b64"], "link", "step", *(f"sum{place_}" for place_ in range(SUMS))),
            "b32": (*REGISTERS["b32"], "word"),
        },
        before=[
            *region_start("data", LINK_BYTES),
            *place(),
            "mov.b64 link, place;",
            "cvt.rn.f64.u32 step, thread;",
            *(f"cvt.rn.f64.u32 sum{place_}, local;" for place_ in range(SUMS)),
        ],
        body=body,
        after=[
            "sub.u64 link, link, region;",
            "cvt.u32.u64 word, link;",
            "cvt.rn.f64.u32 step, word;",
            *(f"add.rn.f64 step, step, sum{place_};" for place_ in range(SUMS)),
            f"mad.wide.u32 target, thread, {LINK_BYTES}, results;",
            "st.global.b64 [target], step;",
        ],
        count=MIX_OPERATIONS,
        opcodes=("LDG", "DADD"),
        companions=ADDRESSES + opcodes("padding"),
        moved={"l1": float(loads * LINK_BYTES)},
        transactions={"l1": loads * LINK_BYTES / LINE_BYTES},
        flop={"fp64": float(additions)},
        min_region_bytes=CHASE_STEPS * MEMORY_THREADS * LINK_BYTES,
        residence=RESIDENCE["l1"],
    ).kernel()


KERNELS: Final = tuple(_mix(percent) for percent in SHARES_PERCENT)
"""Stall mixes."""
