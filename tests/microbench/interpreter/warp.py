"""Instructions of a whole warp: shuffles, votes, matches, reductions, matrices.

Arrays of registers have shape (n,) with n a multiple of 32; a warp is 32 neighbours.
Source of the layouts: PTX ISA, "Matrix fragments for mma".
"""

import numpy as np

from microbench.kernel import WARP_LANES
from microbench.numbers import decode
from tests.microbench.interpreter.arithmetic import values, words

NUMBER_BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f32": 32,
    "f64": 64,
    "s8": 8,
    "s4": 4,
    "b1": 1,
    "e4m3": 8,
    "e5m2": 8,
    "s32": 32,
}
STORED = {
    "f16": "f16x2",
    "bf16": "bf16x2",
    "s8": "s8x4",
    "s4": "s4x8",
    "b1": "b1x32",
    "e4m3": "e4m3x4",
    "e5m2": "e5m2x4",
}
TF32_MASK = np.uint32(0xFFFFE000)
"""The 19 bits of a 32-bit word that a tf32 product reads."""

OF_BITS = ("and", "popc")
"""What a product of single bits is: both set, and the number of such places."""

PACKED_METADATA = 0x44444444


def by_warp(word):
    """Shape (warps, 32)."""
    return word.reshape(-1, WARP_LANES)


def shuffle(mode, word, other, clamp):
    """shfl.sync.idx and .bfly over a whole warp."""
    assert clamp == WARP_LANES - 1
    lane = np.arange(WARP_LANES, dtype=np.uint32)
    source = by_warp(other) % WARP_LANES if mode == "idx" else lane ^ by_warp(other)
    return np.take_along_axis(by_warp(word), source.astype(np.int64), axis=1).ravel()


def ballot(predicate):
    """A word with the predicate of every lane."""
    bits = by_warp(predicate).astype(np.uint64) << np.arange(WARP_LANES, dtype=np.uint64)
    return np.repeat(bits.sum(axis=1).astype(np.uint32), WARP_LANES)


def match_any(word):
    """For each lane, the lanes that hold the same word."""
    lanes = by_warp(word)
    same = lanes[:, :, None] == lanes[:, None, :]
    lanes_as_bits = (same.astype(np.uint64) << np.arange(WARP_LANES, dtype=np.uint64)).sum(axis=2).astype(np.uint32)
    return lanes_as_bits.ravel()


def sum_of_warp(word):
    """The sum over all lanes, modulo 2^32."""
    return np.repeat(by_warp(word).astype(np.uint64).sum(axis=1).astype(np.uint32), WARP_LANES)


def load_matrices(rows, transposed):
    """ldmatrix.x4: rows of shape (warps, 32, 8), the row that each lane points at → four registers."""
    matrices = rows.reshape(-1, 4, 8, 8)
    if transposed:
        matrices = matrices.transpose(0, 1, 3, 2)
    lane = np.arange(WARP_LANES)
    pair = [matrices[:, :, lane // 4, lane % 4 * 2 + place].astype(np.uint32) for place in range(2)]
    words = pair[0] | pair[1] << np.uint32(16)
    return tuple(words[:, matrix, :].ravel() for matrix in range(4))


def fragment(part, kind, registers, shape):
    """Rows and columns of the numbers that each lane holds: two arrays of shape (32, numbers), in the order of registers and bits.

    Rows and columns are those of A (m × k), B (k × n) or C (m × n).
    """
    lane = np.arange(WARP_LANES)[:, None]
    group, thread = lane // 4, lane % 4
    bits = NUMBER_BITS[kind]
    packed = max(1, 32 // bits)
    number = np.arange(registers * packed)[None, :]
    register, place = number // packed, number % packed
    if part == "c":
        element = number
        return np.broadcast_arrays(group + 8 * (element // 2 % 2), thread * 2 + element % 2)
    inner = thread * packed + place
    if part == "b":
        return np.broadcast_arrays(inner + 4 * packed * register, group)
    tall = shape[0] == 16
    rows = group + (8 * (register % 2) if tall else 0)
    steps = register // 2 if tall else register
    return np.broadcast_arrays(rows, inner + 4 * packed * steps)


def _numbers(registers, kind):
    """The numbers in each lane's registers, shape (warps, 32, numbers)."""
    parts = []
    for word in registers:
        if kind == "tf32":
            numbers = values(word & TF32_MASK, "f32")
        elif kind in STORED:
            numbers = decode(word, STORED[kind])
        elif kind == "s32":
            numbers = word.view(np.int32).astype(np.float64)
        else:
            numbers = values(word, kind)
        parts.append(numbers.reshape(-1, WARP_LANES, numbers.size // word.size))
    return np.concatenate(parts, axis=2)


def _gather(registers, part, kind, shape):
    """The matrices that the warps hold, shape (warps, rows, columns)."""
    numbers = _numbers(registers, kind)
    rows, columns = fragment(part, kind, len(registers), shape)
    m, n, k = shape
    size = {"a": (m, k), "b": (k, n), "c": (m, n)}[part]
    matrix = np.zeros((numbers.shape[0], *size))
    matrix[:, rows, columns] = numbers
    return matrix


def multiply(opcode, c, a, b, metadata):
    """mma.sync: A · B + C, rounded once to the sums' kind; of a sparse A columns 0 and 1 of every four are there."""
    typed = opcode[: -len(OF_BITS)] if opcode[-len(OF_BITS) :] == OF_BITS else opcode
    kind_c, kind_a, kind_b = typed[-4:-1]
    word = next(part for part in opcode if part[0] == "m" and part[1:2].isdigit())
    m, rest = word[1:].split("n")
    n, k = rest.split("k")
    shape = (int(m), int(n), int(k))
    if metadata is None:
        left = _gather(a, "a", kind_a, shape)
    else:
        assert metadata == PACKED_METADATA
        dense = _gather(a, "a", kind_a, (shape[0], shape[1], shape[2] // 2))
        left = np.zeros((dense.shape[0], shape[0], shape[2]))
        left[:, :, 0::4], left[:, :, 1::4] = dense[:, :, 0::2], dense[:, :, 1::2]
    right = _gather(b, "b", kind_b, shape)
    total = left @ right + _gather(c, "c", kind_c, shape)
    rows, columns = fragment("c", kind_c, len(c), shape)
    own = total[:, rows, columns]
    return _registers(own, kind_c, len(c))


def _registers(numbers, kind, count):
    each = numbers.shape[2] // count
    parts = [np.ascontiguousarray(numbers[:, :, place * each : (place + 1) * each]).reshape(-1) for place in range(count)]
    if kind == "s32":
        return [part.astype(np.int64).astype(np.int32).view(np.uint32) for part in parts]
    return [words(part, STORED.get(kind, kind)) for part in parts]
