"""Kernels in TOML → `Kernel`, with their text, their counted operations and the PTX of a thread's records; and the list of all kernels.

Kernels whose PTX is written out are Jinja templates: `<expression>`, and lines that begin with `#` are statements (`# for i in range(4)`).
A string with a single expression becomes its value, a number or a list.  A table `[[kernel]]` is rendered once for each combination of the
values in each table of `each`; missing fields come from `[defaults]`, and `let` names values.  Templates see the [constants], what
`instructions.toml` has for all, the values of `each` and `let`, the earlier fields, and the functions below.

Fields are those of `Kernel`, `Work` and `Expectation`, and: `scalars` (arguments in addition to the buffers), `registers` by type, `shared`
variables, the text `before`, in (`body`) and `after` the loop (`microbench.toolchain.ptx.entry_text`), `count` of the opcodes (`fewest`
and `most` if it varies), `support` (a feature of `architectures.toml`), `share` of the threads that reach the loop, `guarded` (average
number of instructions that only some threads execute), `fixed` = false if the block may change.  The slots of a buffer `operands` have
registers with their names; `temporaries` (name → type) follow.  `macros` stand before each text.  A slot with `times` = n becomes n
numbered slots.

A row of `instructions.toml` is a kernel too: each thread loads K accumulators and four operands, different from thread to thread, from
memory, so that the work stays on the vector pipes; the loop is not unrolled; every accumulator is stored at the end.

Fields of a row: `instruction` is the priced one, `templates` the texts of one operation (several alternate, step by step), each with
`operations` instructions.  `start` is the accumulators' slot, `operands` a named set of operand slots or a set of the row.  `breaker` is
emitted every `every` steps: it keeps values alive or prevents folding of an identity.  `first` and `last` replace the template for the
first and the last accumulator of a step (carry chains).  `temporaries` are registers by name.  `opcodes` and `per_operation` are the
resulting opcodes, and the fewest and most of them for one operation; `companions` are additional opcodes of a breaker or a composite.
`chains` is the number of accumulators, `unroll` that of operations.  Missing fields come from `[defaults]`; the others are those above.

A template is emitted once for each accumulator and step.  It contains
    {d}             the accumulator, {n} the next one, {m} the one after that
    {x} {y} {z} {w} the operands, rotating by one each step
    other names     temporaries of the row
"""

import struct
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any, Final

import numpy as np
from jinja2 import Template
from jinja2.nativetypes import NativeEnvironment

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
    count = given.get("count", 0)
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
        "block_threads": threads if given.get("fixed", True) else min(threads, 256),
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


Fields = dict[str, Any]
"""A table that is being filled."""

TEXTS: Final = ("before", "body", "after")
BETWEEN_TEXTS: Final = "----"


def numbered(prefix: str, *counts: int) -> str:
    """`numbered("w", 2, 2)` is "w0_0, w0_1, w1_0, w1_1"."""
    return ", ".join(prefix + "_".join(map(str, places)) for places in product(*map(range, counts)))


def real(number: float) -> str:
    """A float32 in PTX notation."""
    return f"0f{struct.unpack('>I', struct.pack('>f', number))[0]:08X}"


SYNTAX: Final[Fields] = {
    "variable_start_string": "<",
    "variable_end_string": ">",
    "block_start_string": "<%",
    "block_end_string": "%>",
    "comment_start_string": "<#",
    "comment_end_string": "#>",
    "line_statement_prefix": "#",
}
FUNCTIONS: Final = (numbered, real, load_record, store_record, record_bytes)
_ENVIRONMENT: Final = NativeEnvironment(**SYNTAX)
_ENVIRONMENT.globals.update({function.__name__: function for function in FUNCTIONS})


@cache
def _template(text: str) -> Template:
    """A cached template; variants of a kernel share templates, because parsing takes longer than filling."""
    return _ENVIRONMENT.from_string(text)


def written_kernels(file: str) -> tuple[Kernel, ...]:
    """The kernels of a file in this folder, in the file's order."""
    table = tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    constants = {**INSTRUCTIONS["shared"], **table.get("constants", {})}
    return tuple(
        build_kernel(_rendered(entry, table["defaults"], constants | variant)) for entry in table["kernel"] for variant in _variants(entry)
    )


def _variants(entry: Table) -> Iterator[Fields]:
    """Every combination of the values of each table of `each`."""
    for given in entry.get("each", [{}]):
        lists = [value if isinstance(value, list) else [value] for value in given.values()]
        yield from (dict(zip(given, chosen, strict=True)) for chosen in product(*lists))


def _rendered(entry: Table, defaults: Table, context: Fields) -> Fields:
    """A table's fields with filled templates, texts last, including the values of `each`."""
    fields = {name: value for name, value in ({**defaults, **entry}).items() if name not in ("each", "let", "macros", *TEXTS)}
    for name, value in context.items():
        context[name] = _value(value, context)
    found = context | {name: value for name, value in fields.items() if "<" not in str(value)}
    for name, value in (*entry.get("let", {}).items(), *defaults.get("let", {}).items()):
        found.setdefault(name, _value(value, found))
    for name in sorted(fields, key=lambda name: name not in entry):
        value = _value(fields[name], found)
        found[name] = tuple(map(_buffer, value)) if name == "buffers" else value
    texts = [INSTRUCTIONS["macros"] + defaults.get("macros", "") + entry.get("macros", "")]
    texts += [(entry.get(name) or defaults.get(name, "")) + f"\n{BETWEEN_TEXTS}\n" for name in TEXTS]
    filled = _template("".join(texts)).render(found).split(BETWEEN_TEXTS)
    found["registers"] = {kind: names.replace(",", " ").split() for kind, names in found["registers"].items()}
    return found | {name: text.splitlines() for name, text in zip(TEXTS, filled, strict=False)}


def _value(value: Any, context: Table) -> Any:
    if isinstance(value, str):
        return _template(value).render(context) if "<" in value else value
    if isinstance(value, list):
        return [_value(item, context) for item in value]
    if isinstance(value, dict):
        return {_value(key, context): _value(item, context) for key, item in value.items()}
    return value


def _buffer(given: Table) -> Buffer:
    slots = [slot for entry in given["slots"] for slot in _slots(**entry)]
    return Buffer(**{**given, "slots": tuple(slots)})


def _slots(*, name: str, times: int = 0, negates: str = "", **fields: Any) -> list[Slot]:
    if not times:
        return [Slot(name=name, **fields)]
    return [Slot(name=f"{name}{place}", negates=negates and f"{negates}{place}", **fields) for place in range(times)]


ROWS: Final[tuple[Table, ...]] = tuple(INSTRUCTIONS["row"])
"""All rows of the table."""


def _operands(given: str | Table) -> list[Slot]:
    """Slots x0, x1… of a named set of operands, or of a set in the row."""
    chosen: dict[str, Any] = dict(INSTRUCTIONS["operands"][given] if isinstance(given, str) else given)
    # Of itself a row has four operands: the letters x, y, z, w.
    ranges, number, pairs = chosen.pop("ranges"), chosen.pop("number", 4), chosen.pop("pairs", "")
    return [
        Slot(name=f"x{place}", low=low, high=high, **(chosen | {pairs: f"x{place - 1}"} if pairs and place % 2 else chosen))
        for place, (low, high) in enumerate(islice(cycle(ranges), number))
    ]


def instruction_kernel(given: Table, *, chains: int = 0, unroll: int = 0) -> Kernel:
    """The kernel of a row, or with another number of chains and operations in its body; `chains` divides `unroll`."""
    row = {**INSTRUCTIONS["defaults"], **given}
    chains, unroll = chains or row["chains"], unroll or row["unroll"]
    count = unroll * row["operations"]
    fewest, most = row["per_operation"]
    starts = tuple(read(Slot, {"name": f"d{chain}", **row["start"]}) for chain in range(chains))
    inputs = _operands(row["operands"])
    operands, results = Buffer(name="operands", slots=(*starts, *inputs)), Buffer(name="results", slots=starts, written=True)
    return build_kernel(
        {
            **row,
            "name": f"{row['name']}_k{chains}_u{unroll}",
            "family": row["name"],
            "chains": chains,
            "unroll": unroll,
            "buffers": (operands, results),
            "before": [f"mad.wide.u32 operand_address, thread, {record_bytes(operands)}, operands;", *load_record(operands).splitlines()],
            "body": _body(row, chains, unroll // chains, [slot.name for slot in inputs]),
            "after": store_record(results).splitlines(),
            "flop": {precision: number * count for precision, number in row["flop"].items()},
            "fewest": int(count * fewest),
            "most": round(count * most),
        }
    )


def _body(row: Table, chains: int, steps: int, operands: list[str]) -> list[str]:
    lines: list[str] = []
    for step in range(steps):
        turn = dict(zip("xyzw", islice(cycle(operands), step, None), strict=False))
        names = [{"d": f"d{chain}", "n": f"d{(chain + 1) % chains}", "m": f"d{(chain + 2) % chains}", **turn} for chain in range(chains)]
        chosen = [row["templates"][step % len(row["templates"])]] * chains
        chosen[-1] = row.get("last", chosen[-1])
        chosen[0] = row.get("first", chosen[0])
        if step % row["every"] == row["every"] - 1:
            chosen += [row["breaker"]] * chains
        for template, own in zip(chosen, cycle(names)):
            lines += template.format_map(own).splitlines()
    return lines


KERNELS: Final = (
    *written_kernels("baselines.toml"),
    *(instruction_kernel(row) for row in ROWS),
    *written_kernels("matrices.toml"),
    *written_kernels("shared_memory.toml"),
    *written_kernels("global_memory.toml"),
    *written_kernels("blocks.toml"),
)
"""Every kernel at its default chains and unroll."""

SWEPT: Final = ("iadd3", "imad", "lop3_xor", "fadd", "fmul", "ffma", "dfma", "hfma2", "ex2")
"""Instructions whose loop overhead a regression over bodies of several lengths determines."""

SWEEP: Final = tuple(
    instruction_kernel(row, unroll=unroll)
    for row in ROWS
    if row["name"] in SWEPT
    for unroll in (16, 64, 256)  # GPUJoule uses 256
    if unroll != row.get("unroll", INSTRUCTIONS["defaults"]["unroll"])
) + tuple(instruction_kernel(row, chains=1) for row in ROWS if row["name"] in SWEPT)
"""Kernels at other unroll factors, and as one dependent chain, which shows latency and stalls."""

EVERY_KERNEL: Final = (*KERNELS, *SWEEP)
