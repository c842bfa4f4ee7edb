"""The memory that an interpreted kernel sees: buffers at made-up addresses, and shared, local and constant space."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.microbench.interpreter.arithmetic import UNSIGNED
from tests.microbench.interpreter.program import InterpreterError

SEGMENT_BITS: Final = 40
"""Each buffer begins at a multiple of 2^40: an address says which it belongs to, and a stray one belongs to none."""

WORD_BYTES: Final = 4

Word = NDArray[Any]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Bytes that threads reach: `owner` is the number of the part (block or thread) of each thread, `part_bytes` its size."""

    content: Bytes
    part_bytes: int
    owner: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Global buffers by number, and the other spaces by name."""

    buffers: tuple[tuple[str, Bytes], ...]
    spaces: Mapping[str, Space]


def buffer_address(number: int) -> int:
    """Where the buffer of this number begins."""
    return (number + 1) << SEGMENT_BITS


def load(memory: Memory, space: str, addresses: Word, bits: int, mask: NDArray[np.bool_]) -> Word:
    """Words of so many bits at each thread's address; 0 for threads outside the mask."""
    result = np.zeros(addresses.shape, dtype=UNSIGNED[bits])
    for content, places, threads in _targets(memory, space, addresses, bits, mask):
        result[threads] = content.view(UNSIGNED[bits])[places]
    return result


def store(memory: Memory, space: str, addresses: Word, bits: int, words: Word, mask: NDArray[np.bool_]) -> None:
    """Put each thread's word at its address."""
    for content, places, threads in _targets(memory, space, addresses, bits, mask):
        content.view(UNSIGNED[bits])[places] = words[threads]


def copy(memory: Memory, target: Word, source: Word, size: int, mask: NDArray[np.bool_]) -> None:
    """So many bytes from global to shared memory, for each thread of the mask (cp.async, cp.async.bulk)."""
    step = np.arange(0, size, WORD_BYTES, dtype=np.uint64)
    threads = np.flatnonzero(mask)
    every = np.ones(threads.size * step.size, dtype=np.bool_)
    words = load(memory, "global", (source[threads][:, None] + step).ravel(), 32, every)
    part = memory.spaces["shared"]
    own = Space(content=part.content, part_bytes=part.part_bytes, owner=np.repeat(part.owner[threads], step.size))
    store(Memory(buffers=(), spaces={"shared": own}), "shared", (target[threads][:, None] + step).ravel(), 32, words, every)


def update(memory: Memory, space: str, addresses: Word, words: tuple[Word, ...], mask: NDArray[np.bool_], operation: str) -> Word:
    """An atomic operation of each thread in turn, in the order of their numbers; gives what was there before."""
    before = np.zeros(addresses.shape, dtype=np.uint32)
    for content, places, threads in _targets(memory, space, addresses, 32, mask):
        view = content.view(np.uint32)
        for thread, place in zip(threads, places, strict=True):
            old = int(view[place])
            given = int(words[0][thread])
            before[thread] = old
            match operation:
                case "add":
                    view[place] = (old + given) & 0xFFFFFFFF
                case "max":
                    view[place] = max(old, given)
                case "exch":
                    view[place] = given
                case "cas":
                    view[place] = int(words[1][thread]) if old == given else old
                case _:
                    raise InterpreterError(f"atomic {operation}")
    return before


def _targets(
    memory: Memory, space: str, addresses: Word, bits: int, mask: NDArray[np.bool_]
) -> list[tuple[Bytes, NDArray[np.int64], NDArray[np.int64]]]:
    """Contents, places in them (in words) and threads, for every part of memory that is touched."""
    width = bits // 8
    threads = np.flatnonzero(mask)
    wanted = addresses[threads].astype(np.uint64)
    if np.any(wanted % np.uint64(width)):
        raise InterpreterError(f"an address is not a multiple of {width} bytes")
    if space != "global":
        part = memory.spaces[space]
        _bound(wanted, part.part_bytes, width)
        return [(part.content, (wanted.astype(np.int64) + part.owner[threads] * part.part_bytes) // width, threads)]
    number = (wanted >> np.uint64(SEGMENT_BITS)).astype(np.int64) - 1
    targets = []
    for index in np.unique(number):
        if not 0 <= index < len(memory.buffers):
            raise InterpreterError("an address lies outside every buffer")
        _, content = memory.buffers[index]
        chosen = number == index
        place = wanted[chosen] & np.uint64((1 << SEGMENT_BITS) - 1)
        _bound(place, content.size, width)
        targets.append((content, place.astype(np.int64) // width, threads[chosen]))
    return targets


def _bound(places: Word, size: int, width: int) -> None:
    if places.size and int(places.max()) + width > size:
        raise InterpreterError(f"byte {int(places.max())} of {size} is asked for")
