"""Kernels whose PTX is written out in TOML → `Kernel`.

Strings are Jinja templates: `<expression>`, and lines that begin with `#` are statements (`# for load in range(4)`).  A string with a
single expression becomes its value, a number or a list.  A table `[[kernel]]` is rendered once for each combination of the values in each
table of `each`; missing fields come from `[defaults]`, and `let` names values.  Templates see the [constants], what
`instructions.toml` has for all, the values of `each` and `let`, the earlier fields, and the functions below.

Fields are those of `microbench.families.build`, and `macros` before each text.  A slot with `times` = n becomes n numbered slots.
"""

import struct
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, Template
from jinja2.nativetypes import NativeEnvironment

from microbench.families.build import INSTRUCTIONS, Table, build_kernel, load_record, record_bytes, store_record
from microbench.kernel import Buffer, Kernel, Slot

Fields = dict[str, Any]
"""A table that is being filled."""

TEXTS: Final = ("before", "body", "after")
BETWEEN_TEXTS: Final = "----"


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
    filled = _template(_TEXT, "".join(texts)).render(found).split(BETWEEN_TEXTS)
    found["registers"] = {kind: names.replace(",", " ").split() for kind, names in found["registers"].items()}
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
