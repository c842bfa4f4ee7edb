"""Runs a program: every thread of a launch side by side, the thread that is furthest behind first.

That order brings threads together again after a branch, and makes a barrier free: whoever waits there is not behind.

Memory is one array of bytes in segments: the buffers, whose addresses are their places in it, then the shared memory of all blocks, the
local memory of all threads, and the constants.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from microbench.kernel import WARP_LANES
from tests.microbench.interpreter import warp
from tests.microbench.interpreter.arithmetic import UNSIGNED, compute
from tests.microbench.interpreter.program import InterpreterError

MAX_STATEMENTS = 200_000
"""Statements after which a program is taken to run for ever: a check launch needs at most some thousands."""

SEGMENT_BITS = 24
"""Segments of 16 MiB: the buffers of small launches take at most one."""

NOTHING = frozenset({"bar", "membar", "fence", "nanosleep", "wgmma"})
"""Instructions that change no number: order and sleep."""

ATOMIC = {
    "add": lambda old, given, _: old + given,
    "max": lambda old, given, _: max(old, given),
    "exch": lambda _, given, __: given,
    "cas": lambda old, given, new: new if old == given else old,
}
"""What atomic operations leave, from what was there and the operands."""


@dataclass(frozen=True)
class Execution:
    """What a run left behind: the buffers by name, as bytes; how many threads executed each instruction; and for each register how
    many of its bits changed, over all writes and threads.
    """

    buffers: Mapping[str, NDArray[np.uint8]]
    counts: Mapping[str, int]
    flips: Mapping[str, int]


def buffer_address(number):
    """Where the buffer of this number begins."""
    return (number + 1) << SEGMENT_BITS


def execute(program, arguments, grid, block):
    """Run a one-dimensional launch.  Arrays among the arguments become buffers, numbers are passed as they are.

    Raises InterpreterError for a stray address, a division by zero, or a program that does not end.
    """
    return _Machine(program, arguments, grid, block).run()


def _words(vector):
    return [word.strip() for word in vector.strip("{}").split(",")]


class _Machine:
    """Everything that changes while a program runs."""

    def __init__(self, program, arguments, grid, block):
        number = np.arange(grid * block)
        self.program = program
        self.names = [name for (name, _), one in zip(program.parameters, arguments, strict=True) if not isinstance(one, int)]
        contents = [one.tobytes() for one in arguments if not isinstance(one, int)]
        constants = np.concatenate([np.zeros(0, dtype=np.uint32), *program.constants.values()]).tobytes()
        own = {
            "shared": (program.shared_bytes, number // block),
            "local": (program.local_bytes, number),
            "const": (len(constants), number * 0),
        }
        contents += [bytes(size * (int(owner.max()) + 1)) for size, owner in own.values()]
        contents[-1] = constants
        self.spaces = {name: (buffer_address(len(self.names) + place), *own[name]) for place, name in enumerate(own)}
        self.sizes = np.array([0, *map(len, contents), 0])
        self.memory = np.zeros(len(self.sizes) << SEGMENT_BITS, dtype=np.uint8)
        for place, content in enumerate(contents):
            self.memory[buffer_address(place) :][: len(content)] = np.frombuffer(content, dtype=np.uint8)
        addresses = iter(range(len(self.names)))
        self.parameters = {
            name: one if isinstance(one, int) else buffer_address(next(addresses))
            for (name, _), one in zip(program.parameters, arguments, strict=True)
        }
        starts = np.cumsum([0, *(words.nbytes for words in program.constants.values())]).tolist()
        self.variables = {**program.shared, **program.local, **dict(zip(program.constants, starts, strict=False))}
        special = {"%tid.x": number % block, "%ctaid.x": number // block, "%laneid": number % WARP_LANES}
        special |= {"%ntid.x": np.full(number.shape, block), "%nctaid.x": np.full(number.shape, grid)}
        self.special = {name: values.astype(np.uint32) for name, values in special.items()}
        self.registers = {name: np.zeros(number.shape, dtype=UNSIGNED[bits]) for name, bits in program.registers.items()}
        self.counter = np.zeros(number.shape, dtype=np.int64)
        self.carry = np.zeros(number.shape, dtype=np.uint64)
        self.flips = Counter()

    def run(self):
        """Run until every thread has ended."""
        counts = Counter()
        with np.errstate(all="ignore"):
            for _ in range(MAX_STATEMENTS):
                place = int(self.counter.min())
                if place >= len(self.program.statements):
                    break
                statement = self.program.statements[place]
                mask = here = self.counter == place
                if statement.guard:
                    mask = here & (self.registers[statement.guard] ^ statement.negated)
                counts[".".join(statement.opcode)] += int(mask.sum())
                self.counter[here] = place + 1
                if mask.any():
                    self._step(statement, mask)
            else:
                raise InterpreterError(f"{self.program.name} did not end within {MAX_STATEMENTS} statements")
        starts = [(name, buffer_address(place), int(self.sizes[place + 1])) for place, name in enumerate(self.names)]
        buffers = {name.removesuffix("_parameter"): self.memory[start : start + size].copy() for name, start, size in starts}
        return Execution(buffers=buffers, counts=dict(counts), flips=dict(self.flips))

    def _step(self, statement, mask):
        opcode, operands = statement.opcode, statement.operands
        match opcode[0]:
            case "bra":
                self.counter[mask] = self.program.labels[operands[0]]
            case "ret":
                self.counter[mask] = len(self.program.statements)
            case "ld" | "st":
                self._move(statement, mask)
            case "atom" | "red":
                self._atomic(statement, mask)
            case "mbarrier":  # a barrier in shared memory is always passed
                if opcode[1] == "try_wait":
                    self._write(operands[0], np.ones(mask.shape, dtype=np.bool_), mask)
            case "cp":  # copies happen at once
                if opcode[2] in ("ca", "cg", "bulk"):
                    target, source = map(self._address, operands[:2])
                    for step in range(0, int(operands[2]), 4):
                        self._store("shared", target + np.uint64(step), self._load("global", source + np.uint64(step), 32, mask), mask)
            case "shfl" | "vote" | "match" | "redux" | "ldmatrix" | "mma":
                lanes = mask.reshape(-1, WARP_LANES)
                assert np.array_equal(lanes.all(axis=1), lanes.any(axis=1))
                for register, words in zip(_words(operands[0]), self._whole_warp(statement, mask), strict=True):
                    self._write(register, words, mask)
            case "mov" if "{" in "".join(operands):
                self._pack(statement, mask)
            case root if root not in NOTHING:
                sources = [self._read(word, _width(opcode, place)) for place, word in enumerate(operands[1:])]
                result, self.carry = compute(opcode, sources, self.carry)
                self._write(operands[0], result, mask)

    def _read(self, word, bits):
        """A register, a special register, a variable's place or a number."""
        for held in (self.registers, self.special):
            if word in held:
                return held[word]
        if word in self.variables:
            return np.full(self.counter.shape, self.variables[word], dtype=np.uint32)
        value = int(word[2:], 16) if word.startswith(("0f", "0d")) else int(word, 0)
        return np.full(self.counter.shape, value & ((1 << bits) - 1), dtype=UNSIGNED[bits])

    def _write(self, register, words, mask):
        held = self.registers[register]
        assert held.dtype == words.dtype
        if held.dtype != np.bool_:
            self.flips[register] += int(np.unpackbits((held ^ words)[mask].view(np.uint8)).sum())
        held[mask] = words[mask]

    def _address(self, operand):
        """[register], [register+number] or [variable]."""
        base, _, offset = operand.strip("[]").partition("+")
        return self._read(base.strip(), 64).astype(np.uint64) + np.uint64(int(offset or 0))

    def _places(self, space, addresses, bits, mask):
        """The threads of a mask and the places of their words in memory, counted in words."""
        threads, width = np.flatnonzero(mask), bits // 8
        wanted = addresses[threads].astype(np.int64)
        if space != "global":
            base, size, owner = self.spaces[space]
            if np.any(wanted + width > size):
                raise InterpreterError(f"byte {int(wanted.max())} of {size} is asked for")
            wanted += base + owner[threads] * size
        segment, place = np.divmod(wanted, 1 << SEGMENT_BITS)
        if np.any(wanted % width) or np.any(place + width > self.sizes[np.clip(segment, 0, len(self.sizes) - 1)]):
            raise InterpreterError(f"an address lies outside every buffer or is not a multiple of {width} bytes")
        return threads, wanted // width

    def _load(self, space, addresses, bits, mask):
        """Words at each thread's address; 0 for threads outside the mask."""
        threads, places = self._places(space, addresses, bits, mask)
        result = np.zeros(addresses.shape, dtype=UNSIGNED[bits])
        result[threads] = self.memory.view(UNSIGNED[bits])[places]
        return result

    def _store(self, space, addresses, words, mask):
        """Put each thread's word at its address."""
        threads, places = self._places(space, addresses, 8 * words.itemsize, mask)
        self.memory.view(words.dtype)[places] = words[threads]

    def _move(self, statement, mask):
        """Loads and stores of one or several words."""
        space = next(part for part in statement.opcode if part in ("global", "shared", "local", "const", "param"))
        bits, loads = int(statement.opcode[-1][1:]), statement.opcode[0] == "ld"
        vector, pointer = statement.operands if loads else statement.operands[::-1]
        for place, register in enumerate(_words(vector)):
            if space == "param":
                self._write(register, np.full(mask.shape, self.parameters[pointer.strip("[]")], dtype=UNSIGNED[bits]), mask)
                continue
            address = self._address(pointer) + np.uint64(place * bits // 8)
            if loads:
                self._write(register, self._load(space, address, bits, mask), mask)
            else:
                self._store(space, address, self._read(register, bits), mask)

    def _atomic(self, statement, mask):
        """Each thread in turn, in the order of their numbers."""
        returns = statement.opcode[0] == "atom"
        address, *given = statement.operands[1:] if returns else statement.operands
        words = [self._read(word, 32) for word in given]
        before, held = np.zeros(mask.shape, dtype=np.uint32), self.memory.view(np.uint32)
        for thread, place in zip(*self._places(statement.opcode[1], self._address(address), 32, mask), strict=True):
            before[thread] = held[place]
            held[place] = ATOMIC[statement.opcode[2]](int(held[place]), int(words[0][thread]), int(words[-1][thread])) & 0xFFFFFFFF
        if returns:
            self._write(statement.operands[0], before, mask)

    def _pack(self, statement, mask):
        """mov between a wide register and its parts, lowest first."""
        target, source = statement.operands
        if target.startswith("{"):
            parts, wide = _words(target), self._read(source, 64)
            narrow = wide.view(UNSIGNED[8 * wide.itemsize // len(parts)]).reshape(-1, len(parts))
            for place, register in enumerate(parts):
                self._write(register, narrow[:, place], mask)
            return
        words = np.stack([self._read(register, 32) for register in _words(source)], axis=1)
        self._write(target, words.view(UNSIGNED[8 * words.itemsize * words.shape[1]])[:, 0], mask)

    def _whole_warp(self, statement, mask):
        """Results of instructions that need all lanes."""
        opcode, operands = statement.opcode, statement.operands
        match opcode[0]:
            case "shfl":
                return [warp.shuffle(opcode[2], self._read(operands[1], 32), self._read(operands[2], 32), int(operands[3]))]
            case "vote":
                return [warp.ballot(self._read(operands[1], 1))]
            case "match":
                return [warp.match_any(self._read(operands[1], 32))]
            case "redux":
                return [warp.sum_of_warp(self._read(operands[1], 32))]
            case "ldmatrix":
                start = self._address(operands[1])
                halves = [self._load("shared", start + np.uint64(2 * place), 16, mask) for place in range(8)]
                return warp.load_matrices(np.stack(halves, axis=1).reshape(-1, WARP_LANES, 8), "trans" in opcode)
            case _:
                a, b, c = ([self._read(name, 64) for name in _words(vector)] for vector in operands[1:4])
                metadata = int(self._read(operands[4], 32)[0]) if "sp__ordered_metadata" in opcode else None
                return warp.multiply(opcode, c, a, b, metadata)


def _width(opcode, place):
    """Bits of an immediate among the sources: the instruction's width, except where one source is narrower."""
    if opcode[0] in ("shl", "shr") and place == 1:
        return 32
    if opcode[0] == "mad" and "wide" in opcode:
        return 64 if place == 2 else 32
    digits = "".join(letter for letter in opcode[-1].split("x")[0] if letter.isdigit())
    return 32 if opcode[-1].endswith(("x2", "x4")) or not digits else int(digits)
