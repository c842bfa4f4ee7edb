"""Runs a program: every thread of a launch side by side, the thread that is furthest behind first.

That order brings threads together again after a branch, and makes a barrier free: whoever waits there is not behind.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from microbench.kernel import WARP_LANES
from tests.microbench.interpreter import warp
from tests.microbench.interpreter.arithmetic import UNSIGNED, compute
from tests.microbench.interpreter.memory import Memory, Space, buffer_address, copy, load, store, update
from tests.microbench.interpreter.program import InterpreterError, Program, Statement

Word = NDArray[Any]
Mask = NDArray[np.bool_]

MAX_STATEMENTS: Final = 200_000
"""Statements after which a program is taken to run for ever: a check launch needs at most some thousands."""

NOTHING: Final = frozenset({"bar", "membar", "fence", "nanosleep", "wgmma"})
"""Instructions that change no number: order and sleep."""

ONES_OF_A_BYTE: Final = np.array([byte.bit_count() for byte in range(256)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What a run left behind: the buffers by name, as bytes; how many threads executed each instruction; and for each register how
    many of its bits changed, over all writes and threads.
    """

    buffers: Mapping[str, NDArray[np.uint8]]
    counts: Mapping[str, int]
    flips: Mapping[str, int]


@dataclass(slots=True, kw_only=True)
class _State:
    """Everything that changes while a program runs."""

    program: Program
    registers: dict[str, Word]
    memory: Memory
    counter: NDArray[np.int64]
    carry: Word
    special: Mapping[str, Word]
    variables: Mapping[str, int]
    flips: Counter[str]


def execute(program: Program, arguments: Sequence[int | NDArray[Any]], grid: int, block: int) -> Execution:
    """Run a one-dimensional launch.  Arrays among the arguments become buffers, numbers are passed as they are.

    Raises InterpreterError for a stray address, a division by zero, or a program that does not end.
    """
    state, parameters, names = _start(program, arguments, grid, block)
    counts: Counter[str] = Counter()
    end = len(program.statements)
    with np.errstate(all="ignore"):
        for _ in range(MAX_STATEMENTS):
            place = int(state.counter.min())
            if place >= end:
                break
            statement = program.statements[place]
            here = state.counter == place
            mask = here & _guard(state, statement)
            counts[".".join(statement.opcode)] += int(mask.sum())
            state.counter[here] = place + 1
            if mask.any():
                _step(state, statement, mask, parameters)
        else:
            raise InterpreterError(f"{program.name} did not end within {MAX_STATEMENTS} statements")
    contents = {name: content for name, (_, content) in zip(names, state.memory.buffers, strict=True)}
    return Execution(buffers=contents, counts=dict(counts), flips=dict(state.flips))


def _start(program: Program, arguments: Sequence[int | NDArray[Any]], grid: int, block: int) -> tuple[_State, dict[str, int], list[str]]:
    threads = grid * block
    number = np.arange(threads)
    buffers: list[tuple[str, NDArray[np.uint8]]] = []
    parameters: dict[str, int] = {}
    for (name, _), argument in zip(program.parameters, arguments, strict=True):
        if isinstance(argument, int):
            parameters[name] = argument
        else:
            parameters[name] = buffer_address(len(buffers))
            buffers.append((name.removesuffix("_parameter"), np.frombuffer(bytearray(argument.tobytes()), dtype=np.uint8)))
    constants = np.concatenate([np.zeros(0, dtype=np.uint32), *program.constants.values()])
    spaces = {
        "shared": Space(content=np.zeros(grid * program.shared_bytes, np.uint8), part_bytes=program.shared_bytes, owner=number // block),
        "local": Space(content=np.zeros(threads * program.local_bytes, np.uint8), part_bytes=program.local_bytes, owner=number),
        "const": Space(content=constants.view(np.uint8), part_bytes=constants.nbytes, owner=np.zeros(threads, np.int64)),
    }
    places: dict[str, int] = dict(program.shared) | dict(program.local)
    offset = 0
    for name, words in program.constants.items():
        places[name] = offset
        offset += words.nbytes
    special = {
        "%tid.x": number % block,
        "%ctaid.x": number // block,
        "%ntid.x": np.full(threads, block),
        "%nctaid.x": np.full(threads, grid),
        "%laneid": number % WARP_LANES,
    }
    state = _State(
        program=program,
        registers={name: np.zeros(threads, dtype=UNSIGNED[bits]) for name, bits in program.registers.items()},
        memory=Memory(buffers=tuple(buffers), spaces=spaces),
        counter=np.zeros(threads, dtype=np.int64),
        carry=np.zeros(threads, dtype=np.uint64),
        special={name: values.astype(np.uint32) for name, values in special.items()},
        variables=places,
        flips=Counter(),
    )
    return state, parameters, [name for name, _ in buffers]


def _guard(state: _State, statement: Statement) -> Mask:
    if not statement.guard:
        return np.ones(state.counter.shape, dtype=np.bool_)
    held: Mask = state.registers[statement.guard]
    return ~held if statement.negated else held


def _step(state: _State, statement: Statement, mask: Mask, parameters: Mapping[str, int]) -> None:
    match statement.opcode[0]:
        case "bra":
            state.counter[mask] = state.program.labels[statement.operands[0]]
        case "ret":
            state.counter[mask] = len(state.program.statements)
        case "ld":
            _load(state, statement, mask, parameters)
        case "st":
            _store(state, statement, mask)
        case "atom" | "red":
            _atomic(state, statement, mask)
        case "cp" | "mbarrier":
            _asynchronous(state, statement, mask)
        case "shfl" | "vote" | "match" | "redux" | "ldmatrix" | "mma":
            _whole_warp(state, statement, mask)
        case "mov" if "{" in "".join(statement.operands):
            _pack(state, statement, mask)
        case root if root not in NOTHING:
            sources = [_read(state, word, _width(statement, place)) for place, word in enumerate(statement.operands[1:])]
            result, state.carry = compute(statement.opcode, sources, state.carry)
            _write(state, statement.operands[0], result, mask)


def _width(statement: Statement, place: int) -> int:
    """Bits of an immediate among the sources: the instruction's width, except where one source is narrower."""
    root = statement.opcode[0]
    kind = statement.opcode[-1]
    if root in ("shl", "shr") and place == 1:
        return 32
    if root == "mad" and "wide" in statement.opcode:
        return 64 if place == 2 else 32
    digits = "".join(letter for letter in kind.split("x")[0] if letter.isdigit())
    return 32 if kind.endswith(("x2", "x4")) or not digits else int(digits)


def _read(state: _State, word: str, bits: int) -> Word:
    """A register, a special register, a variable's place or a number."""
    if word in state.registers:
        return state.registers[word]
    if word in state.special:
        return state.special[word]
    shape = state.counter.shape
    if word in state.variables:
        return np.full(shape, state.variables[word], dtype=np.uint32)
    value = int(word[2:], 16) if word.startswith(("0f", "0d")) else int(word, 0)
    return np.full(shape, value & ((1 << bits) - 1), dtype=UNSIGNED[bits])


def _write(state: _State, register: str, words: Word, mask: Mask) -> None:
    held = state.registers[register]
    assert held.dtype == words.dtype
    if held.dtype != np.bool_:
        changed = np.ascontiguousarray((held ^ words)[mask]).view(np.uint8)
        state.flips[register] += int(ONES_OF_A_BYTE[changed].sum())
    held[mask] = words[mask]


def _words(vector: str) -> list[str]:
    return [word.strip() for word in vector.strip("{}").split(",")]


def _address(state: _State, operand: str) -> Word:
    """[register], [register+number] or [variable]."""
    base, _, offset = operand.strip("[]").partition("+")
    return _read(state, base.strip(), 64).astype(np.uint64) + np.uint64(int(offset or 0))


def _space(statement: Statement) -> str:
    return next(part for part in statement.opcode if part in ("global", "shared", "local", "const", "param"))


def _load(state: _State, statement: Statement, mask: Mask, parameters: Mapping[str, int]) -> None:
    bits = int(statement.opcode[-1][1:])
    if "param" in statement.opcode:
        value = parameters[statement.operands[1].strip("[]")]
        _write(state, statement.operands[0], np.full(mask.shape, value, dtype=UNSIGNED[bits]), mask)
        return
    start = _address(state, statement.operands[1])
    for place, register in enumerate(_words(statement.operands[0])):
        address = start + np.uint64(place * bits // 8)
        _write(state, register, load(state.memory, _space(statement), address, bits, mask), mask)


def _store(state: _State, statement: Statement, mask: Mask) -> None:
    bits = int(statement.opcode[-1][1:])
    start = _address(state, statement.operands[0])
    for place, register in enumerate(_words(statement.operands[1])):
        address = start + np.uint64(place * bits // 8)
        store(state.memory, _space(statement), address, bits, _read(state, register, bits), mask)


def _atomic(state: _State, statement: Statement, mask: Mask) -> None:
    returns = statement.opcode[0] == "atom"
    address, *given = statement.operands[1:] if returns else statement.operands
    words = tuple(_read(state, word, 32) for word in given)
    operation = statement.opcode[2]
    before = update(state.memory, _space(statement), _address(state, address), words, mask, operation)
    if returns:
        _write(state, statement.operands[0], before, mask)


def _asynchronous(state: _State, statement: Statement, mask: Mask) -> None:
    """Copies happen at once; a barrier in shared memory is always passed."""
    if statement.opcode[0] == "mbarrier":
        if statement.opcode[1] == "try_wait":
            _write(state, statement.operands[0], np.ones(mask.shape, dtype=np.bool_), mask)
        return
    if statement.opcode[2] not in ("ca", "cg", "bulk"):
        return
    target, source = (_address(state, operand) for operand in statement.operands[:2])
    copy(state.memory, target, source, int(statement.operands[2]), mask)


def _pack(state: _State, statement: Statement, mask: Mask) -> None:
    """mov between a wide register and its parts, lowest first."""
    target, source = statement.operands
    if target.startswith("{"):
        parts = _words(target)
        wide = _read(state, source, 64)
        bits = wide.dtype.itemsize * 8 // len(parts)
        for place, register in enumerate(parts):
            _write(state, register, (wide >> wide.dtype.type(place * bits)).astype(UNSIGNED[bits]), mask)
        return
    words = [_read(state, register, 32) for register in _words(source)]
    bits = words[0].dtype.itemsize * 8
    joined = np.zeros(mask.shape, dtype=UNSIGNED[bits * len(words)])
    for place, word in enumerate(words):
        joined |= word.astype(joined.dtype) << joined.dtype.type(place * bits)
    _write(state, target, joined, mask)


def _whole_warp(state: _State, statement: Statement, mask: Mask) -> None:
    """Instructions that need all lanes."""
    lanes = mask.reshape(-1, WARP_LANES)
    assert np.array_equal(lanes.all(axis=1), lanes.any(axis=1))
    opcode, operands = statement.opcode, statement.operands
    match opcode[0]:
        case "shfl":
            word, other = (_read(state, name, 32) for name in operands[1:3])
            _write(state, operands[0], warp.shuffle(opcode[2], word, other, int(operands[3])), mask)
        case "vote":
            _write(state, operands[0], warp.ballot(_read(state, operands[1], 1)), mask)
        case "match":
            _write(state, operands[0], warp.match_any(_read(state, operands[1], 32)), mask)
        case "redux":
            _write(state, operands[0], warp.sum_of_warp(_read(state, operands[1], 32)), mask)
        case "ldmatrix":
            _load_matrices(state, statement, mask)
        case _:
            c, a, b = ([_read(state, name, 64) for name in _words(vector)] for vector in (operands[3], operands[1], operands[2]))
            metadata = int(_read(state, operands[4], 32)[0]) if "sp__ordered_metadata" in opcode else None
            for register, words in zip(_words(operands[0]), warp.multiply(opcode, c, a, b, metadata), strict=True):
                _write(state, register, words, mask)


def _load_matrices(state: _State, statement: Statement, mask: Mask) -> None:
    start = _address(state, statement.operands[1])
    halves = [load(state.memory, "shared", start + np.uint64(2 * place), 16, mask) for place in range(8)]
    rows = np.stack(halves, axis=1).reshape(-1, WARP_LANES, 8)
    for register, words in zip(_words(statement.operands[0]), warp.load_matrices(rows, "trans" in statement.opcode), strict=True):
        _write(state, register, words, mask)
