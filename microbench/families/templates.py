"""Kernels whose PTX is written out in TOML → `Kernel`.

Strings are Jinja templates: `<expression>`, and lines that begin with `#` are statements (`# for load in range(4)`).  A string with a
single expression becomes its value, a number or a list.  A table `[[kernel]]` is rendered once for each combination of the values in each
table of `each`; missing fields come from `[defaults]`, and `let` names values.  Templates see the [constants], the values of
`each` and `let`, the earlier fields, and the functions below.

Fields are those of `Kernel`, `Work` and `Expectation`, and: `scalars` (arguments in addition to the buffers), `registers` by type, `shared`
variables, the text `before`, in (`body`) and `after` the loop (`microbench.toolchain.ptx.entry_text`), `macros` before each text, `count`
of the opcodes (`fewest` and `most` if it varies), `share` of the threads that reach the loop, `guarded` (average number of instructions
that only some threads execute), `fixed` = false if the block may change.  A slot with `times` = n becomes n numbered slots.
"""

import struct
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, Template
from jinja2.nativetypes import NativeEnvironment

from estimator.vocabulary.reader import read
from microbench.families.rows import load_record, opcodes, record_bytes, slot_registers, store_record
from microbench.kernel import Buffer, Expectation, Kernel, Slot, Work
from microbench.toolchain.ptx import Texts, entry_text, loop_operations

Table = Mapping[str, Any]
Fields = dict[str, Any]
"""A table of TOML as in the file, and a table that is being filled."""

TEXTS: Final = ("before", "body", "after")
BETWEEN_TEXTS: Final = "----"

STORE_WORD: Final = """
# macro store_word(register)
mad.wide.u32 target, thread, 4, results;
st.global.b32 [target], <register>;
# endmacro
"""
"""A macro for all files: stores the thread's result, one word."""

SHARED_VALUES: Final[Table] = {
    "any_word": {"name": "word", "kind": "u32", "high": 2**32 - 1},
    "words": {"name": "results", "slots": [{"name": "word", "kind": "u32"}], "written": True},
}


def numbered(prefix: str, *counts: int) -> str:
    """`numbered("w", 2, 2)` is "w0_0, w0_1, w1_0, w1_1"."""
    return ", ".join(prefix + "_".join(map(str, places)) for places in product(*map(range, counts)))


def prefixed(prefix: str, words: str) -> str:
    """`prefixed("at_", "a b")` is "at_a at_b"."""
    return " ".join(prefix + word for word in words.split())


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
FUNCTIONS: Final = (numbered, prefixed, real, load_record, store_record, record_bytes)
_TEXT: Final = Environment(**SYNTAX)
_VALUE: Final = NativeEnvironment(**SYNTAX)
for _environment in (_TEXT, _VALUE):
    _environment.globals.update({function.__name__: function for function in FUNCTIONS})


@cache
def _template(environment: Environment, text: str) -> Template:
    """A cached template; variants of a kernel share templates, because parsing takes longer than filling."""
    return environment.from_string(text)


def written_kernels(file: str) -> tuple[Kernel, ...]:
    """The kernels of a file in this folder, in the file's order."""
    table = tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    constants = SHARED_VALUES | table.get("constants", {})
    return tuple(
        _kernel(_rendered(entry, table["defaults"], constants | variant)) for entry in table["kernel"] for variant in _variants(entry)
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
    texts = [STORE_WORD + defaults.get("macros", "") + entry.get("macros", "")]
    texts += [(entry.get(name) or defaults.get(name, "")) + f"\n{BETWEEN_TEXTS}\n" for name in TEXTS]
    filled = _template(_TEXT, "".join(texts)).render(found).split(BETWEEN_TEXTS)
    return found | {name: [line for line in text.splitlines() if line.strip()] for name, text in zip(TEXTS, filled, strict=False)}


def _value(value: Any, context: Table) -> Any:
    if isinstance(value, str):
        return _template(_VALUE, value).render(context) if "<" in value else value
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


def _kernel(given: Table) -> Kernel:
    """The kernel of a rendered table, with its text and its counted operations."""
    arguments = (*(buffer.name for buffer in given["buffers"]), *given["scalars"])
    threads = given.get("max_threads", 256)
    registers = {kind: names.replace(",", " ").split() for kind, names in given["registers"].items()}
    if given["buffers"][0].name == "operands":
        registers = slot_registers(given["buffers"][0], registers)
    text = entry_text(
        name=given["name"],
        arguments=arguments,
        registers=registers,
        shared=given.get("shared", ""),
        texts=Texts(**{name: given[name] for name in TEXTS}),
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
        "work": {**_own(Work, given), "operations": counted},
        "expectation": {"fewest": count, "most": count, **_own(Expectation, given), **lists},
        "block_threads": threads if fixed else min(threads, 256),
        "fixed_block": (threads, 1, 1) if fixed else None,
    }
    return read(Kernel, whole)


def _own(kind: type[Kernel] | type[Work] | type[Expectation], given: Table) -> Fields:
    """The fields of a table that belong to a kind of value; an empty list counts as missing."""
    return {one.name: given[one.name] for one in fields(kind) if one.name in given and given[one.name] != []}
