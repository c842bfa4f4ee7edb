"""PTX text → a list of statements."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class InterpreterError(Exception):
    """A PTX text outside the generated subset, or one that goes wrong."""


REGISTER_BITS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64}

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\((.*?)\)\s*((?:\.\w+[^{;]*?)*)\{(.*)\}", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+\.u(32|64)\s+(\w+)")
_VARIABLE = re.compile(r"\.(shared|local)\s+\.align\s+(\d+)\s+\.b(8|16|32|64)\s+(\w+)(?:\[(\d+)\])?$")
_CONSTANT = re.compile(r"\.const\s+\.align\s+4\s+\.u32\s+(\w+)\[(\d+)\]\s*=\s*\{(.*?)\};", re.DOTALL)
_LABEL = re.compile(r"^(\w+):\s*")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
_STATEMENT = re.compile(r"^(?:@(!?)(\w+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)


@dataclass(frozen=True)
class Statement:
    """One instruction: its guard ("" for none), its opcode split at the dots, and its operands as text (vectors and addresses whole)."""

    guard: str
    negated: bool
    opcode: tuple[str, ...]
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A parsed entry.

    `parameters` are (name, bits) in order; `registers` bits by name; `shared`, `local` and `constants` give the place of each variable,
    the totals beside them.  `labels` are indices into `statements`.
    """

    name: str
    parameters: tuple[tuple[str, int], ...]
    registers: dict[str, int]
    shared: dict[str, int]
    shared_bytes: int
    local: dict[str, int]
    local_bytes: int
    constants: dict[str, NDArray[np.uint32]]
    statements: tuple[Statement, ...]
    labels: dict[str, int]


def parse(text, declarations=""):
    """The entry of a PTX text of the generated subset."""
    plain = _COMMENT.sub(" ", text)
    entry = _ENTRY.search(plain)
    assert entry
    name, parameters, _, body = entry.groups()
    registers = {}
    places = {"shared": {}, "local": {}}
    sizes = {"shared": 0, "local": 0}
    statements = []
    labels = {}
    for piece in body.split(";"):
        line = piece.strip()
        while label := _LABEL.match(line):
            labels[label[1]] = len(statements)
            line = line[label.end() :].strip()
        if not line or line.startswith(".pragma"):
            continue
        if line.startswith(".reg"):
            kind, names = line.removeprefix(".reg").strip().split(None, 1)
            registers |= dict.fromkeys((word.strip() for word in names.split(",")), REGISTER_BITS[kind.removeprefix(".")])
        elif variable := _VARIABLE.match(line):
            space, align, bits, variable_name, count = variable.groups()
            start = -(-sizes[space] // int(align)) * int(align)
            places[space][variable_name] = start
            sizes[space] = start + int(bits) // 8 * int(count or 1)
        else:
            statements.append(_statement(line, name))
    return Program(
        name=name,
        parameters=tuple((word, int(bits)) for bits, word in _PARAMETER.findall(parameters)),
        registers=registers,
        shared=places["shared"],
        shared_bytes=sizes["shared"],
        local=places["local"],
        local_bytes=sizes["local"],
        constants={name: np.array(words.split(","), dtype=np.uint32) for name, _, words in _CONSTANT.findall(declarations)},
        statements=tuple(statements),
        labels=labels,
    )


def _statement(line, entry):
    found = _STATEMENT.match(line)
    assert found, f"{entry}: {line}"
    negated, guard, opcode, operands = found.groups()
    return Statement(
        guard=guard or "",
        negated=bool(negated),
        opcode=tuple(part for part in opcode.replace("::", "__").split(".") if part),
        operands=tuple(word.strip() for word in _OPERAND.findall(operands)),
    )
