"""Fields of a kernel → `Kernel`, with its text and its counted operations; and the PTX of a thread's records.

Fields are those of `Kernel`, `Work` and `Expectation`, and: `scalars` (arguments in addition to the buffers), `registers` by type, `shared`
variables, the text `before`, in (`body`) and `after` the loop (`microbench.toolchain.ptx.entry_text`), `count` of the opcodes (`fewest`
and `most` if it varies), `support` (a feature of `architectures.toml`), `share` of the threads that reach the loop, `guarded` (average
number of instructions that only some threads execute), `fixed` = false if the block may change.  The slots of a buffer `operands` have
registers with their names; `temporaries` (name → type) follow.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from estimator.vocabulary.reader import read
from microbench.kernel import FEATURES, Buffer, Expectation, Kernel, Slot, Support, Work
from microbench.numbers import STORAGE
from microbench.operands import record_type
from microbench.toolchain.ptx import Texts, entry_text, loop_operations

Table = Mapping[str, Any]
"""A table of TOML."""

INSTRUCTIONS: Final[Table] = tomllib.loads(Path(__file__).with_name("instructions.toml").read_text(encoding="utf-8"))
"""The table of instructions, with the lists of opcodes that all tables share."""


def opcodes(*words: str) -> tuple[str, ...]:
    """Opcodes in their order; a lower-case word is replaced by the opcodes of its list in the table."""
    lists = INSTRUCTIONS["opcodes"]
    return tuple(one for word in words for one in (opcodes(*lists[word]) if word in lists else (word,)))


def build_kernel(given: Table) -> Kernel:
    """The kernel of these fields."""
    arguments = (*(buffer.name for buffer in given["buffers"]), *given["scalars"])
    threads = given.get("max_threads", 256)
    registers = {kind: list(names) for kind, names in given["registers"].items()}
    if given["buffers"][0].name == "operands":
        for slot in given["buffers"][0].slots:
            registers.setdefault(f"b{slot_bits(slot)}", []).append(slot.name)
    for name, kind in given.get("temporaries", {}).items():
        registers.setdefault(kind, []).append(name)
    text = entry_text(
        name=given["name"],
        arguments=arguments,
        registers=registers,
        shared=given.get("shared", ""),
        texts=Texts(given["before"], given["body"], given["after"]),
        max_threads=threads,
        lanes_may_idle=given.get("lanes_may_idle", True),
    )
    operations, guarded = loop_operations(text, given.get("share", 1.0)), given.get("guarded", {})
    counted = {name: operations.get(name, 0.0) + guarded.get(name, 0.0) for name in sorted({*operations, *guarded})}
    count, fixed = given.get("count", 0), given.get("fixed", True)
    lists = {name: opcodes(*given.get(name, ())) for name in ("opcodes", "companions", "uniform")}
    whole = {
        "family": given["name"],
        "unroll": count,
        "text": text,
        "arguments": arguments,
        **_own(Kernel, given),
        "support": FEATURES[given["support"]] if "support" in given else Support(),
        "work": {**_own(Work, given), "operations": counted},
        "expectation": {"fewest": count, "most": count, **_own(Expectation, given), **lists},
        "block_threads": threads if fixed else min(threads, 256),
        "fixed_block": (threads, 1, 1) if fixed else None,
    }
    return read(Kernel, whole)


def _own(kind: type[Kernel] | type[Work] | type[Expectation], given: Table) -> dict[str, Any]:
    """The fields of a table that belong to a kind of value; an empty list counts as missing."""
    return {one.name: given[one.name] for one in fields(kind) if one.name in given and given[one.name] != []}


def slot_bits(slot: Slot) -> int:
    """Width of a slot's word."""
    return 8 * int(np.dtype(STORAGE[slot.kind]).itemsize)


def record_bytes(buffer: Buffer) -> int:
    """Size of a record [byte]: a multiple of its widest slot."""
    return record_type(buffer).itemsize


def load_record(buffer: Buffer) -> str:
    """PTX that loads a thread's record at `operand_address` into the registers of its slots."""
    return "\n".join(f"ld.global.b{slot_bits(slot)} {slot.name}, [operand_address+{place}];" for slot, place in _places(buffer))


def store_record(buffer: Buffer) -> str:
    """PTX that stores the registers of its slots as a thread's record of the results."""
    stores = [f"st.global.b{slot_bits(slot)} [result_address+{place}], {slot.name};" for slot, place in _places(buffer)]
    return "\n".join([f"mad.wide.u32 result_address, thread, {record_bytes(buffer)}, results;", *stores])


def _places(buffer: Buffer) -> list[tuple[Slot, int]]:
    """Each slot with its offset in a record [byte]."""
    offsets: Table = record_type(buffer).fields or {}
    return [(slot, int(offsets[slot.name][1])) for slot in buffer.slots]
