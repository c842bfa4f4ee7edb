"""Contents of a kernel's buffers, from pattern and seed, the same on every host; and the check of what a kernel left in them.

The expected results of each kernel's small launch (`Kernel.check_launch`) ship with this file; exact ones as digests.  The tests execute
the kernels' own text to get them (`tests/microbench/expected.py` writes them).
"""

import hashlib
import zlib
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from estimator.vocabulary.quantities import Array
from microbench.errors import ResultError
from microbench.kernel import Buffer, Buffers, Kernel, Launch, Pattern, Slot
from microbench.numbers import STORAGE, decode, encode

WHOLE: Final = ("u32", "s32", "u64", "u8x4")
"""Kinds that are drawn as whole words."""

LINK_BYTES = 8

DRAWN_RECORDS: Final = 1 << 20
"""Records that are drawn for a buffer; a longer one repeats them: drawing hundreds of megabytes costs a host 15 to 20 s."""


def record_type(buffer: Buffer) -> np.dtype[np.void]:
    """The record of a buffer: each slot at a multiple of its own size, the whole a multiple of the widest."""
    return np.dtype([(slot.name, STORAGE[slot.kind]) for slot in buffer.slots], align=True)


def buffer_records(buffer: Buffer, launch: Launch) -> int:
    """Number of records of a buffer in a launch; regions hold whole records, as both sizes are powers of two."""
    match buffer.per:
        case "thread":
            return launch.threads * buffer.records
        case "launch":
            return buffer.records
        case _:
            return launch.region_bytes * _regions(buffer, launch) // record_type(buffer).itemsize


def _regions(buffer: Buffer, launch: Launch) -> int:
    """Regions that a buffer holds."""
    return 1 if buffer.per == "common" else launch.walked_regions


def buffer_bytes(kernel: Kernel, launch: Launch) -> int:
    """Memory of all buffers of a launch [byte]."""
    return sum(buffer_records(buffer, launch) * record_type(buffer).itemsize for buffer in kernel.buffers)


def contents(buffer: Buffer, launch: Launch, address: int = 0) -> NDArray[Any]:
    """The initial records of a buffer, shape (records,): all of a chase, at most DRAWN_RECORDS of others, which the buffer repeats.

    `address` is its address on the device, for chases, which hold addresses.  Written buffers are zeros unless they are `filled`.
    """
    count = min(buffer_records(buffer, launch), DRAWN_RECORDS)
    if buffer.chase_stride:
        links = chase_addresses(launch.region_bytes, _regions(buffer, launch), buffer.chase_stride, address)
        return links.view(record_type(buffer))
    records = np.zeros(count, dtype=record_type(buffer))
    if buffer.written and not buffer.filled:
        return records
    generator = np.random.default_rng([launch.seed, zlib.crc32(buffer.name.encode())])
    for slot in buffer.slots:
        records[slot.name] = _column(slot, count, launch, generator, records)
    return records


def chase_addresses(region_bytes: int, regions: int, stride_entries: int, address: int) -> NDArray[np.uint64]:
    """Links of 8 bytes: entry i of a region → the address of entry (i + stride) of that region, shape (entries of all regions,)."""
    entries = region_bytes // LINK_BYTES
    ring = (np.arange(entries, dtype=np.uint64) + np.uint64(stride_entries)) % np.uint64(max(entries, 1))
    starts = np.uint64(address) + np.arange(regions, dtype=np.uint64) * np.uint64(region_bytes)
    return (starts[:, None] + ring[None, :] * np.uint64(LINK_BYTES)).ravel()


def argument_value(name: str, launch: Launch) -> int:
    """The number that a launch passes for one of `microbench.kernel.SCALARS`."""
    return (launch.regions or 1 << 32) - 1 if name == "region_mask" else int(getattr(launch, name))


def _column(slot: Slot, count: int, launch: Launch, generator: np.random.Generator, earlier: NDArray[Any]) -> NDArray[Any]:
    if slot.negates:
        return encode(-decode(earlier[slot.negates], slot.kind), slot.kind)
    if slot.inverts:
        return encode(1.0 / decode(earlier[slot.inverts], slot.kind), slot.kind)
    each = 1 if slot.kind in WHOLE else decode(np.zeros(1, STORAGE[slot.kind]), slot.kind).size
    match launch.pattern:
        case "zero":
            numbers = np.full(count * each, slot.low if slot.never_zero else 0.0)
        case "constant":
            numbers = np.full(count * each, (slot.low + slot.high) / 2.0)
        case _:
            numbers = generator.uniform(slot.low, slot.high, count * each)
    if slot.kind in WHOLE:
        return _whole(slot, numbers, generator, launch.pattern == "random")
    return encode(numbers, slot.kind)


def _whole(slot: Slot, numbers: Array, generator: np.random.Generator, random: bool) -> NDArray[Any]:
    """Whole numbers in the slot's range; wide ranges get random bits, because a float64 has too few."""
    storage = STORAGE[slot.kind]
    if random:
        drawn_as = np.int64 if slot.kind[0] == "s" else np.uint64
        words = generator.integers(int(slot.low), int(slot.high), numbers.size, dtype=drawn_as, endpoint=True).astype(storage)
    else:
        words = np.floor(numbers).astype(storage)
    return words | storage(1) if slot.odd else words


EXPECTED: Final = Path(__file__).with_name("expected.npz")
"""File of expected results: `exact` (names of results compared bit for bit), their `digests`, and the bytes of the others by name."""

DIGEST_BYTES: Final = 16


@cache
def _shipped() -> tuple[dict[str, bytes], dict[str, NDArray[np.uint8]]]:
    """Digests and bytes by name of a result."""
    with np.load(EXPECTED) as stored:
        digests = dict(zip(stored["exact"].tolist(), (row.tobytes() for row in stored["digests"]), strict=True))
        return digests, {name: stored[name] for name in stored.files if name not in ("exact", "digests")}


def result_name(kernel: Kernel, pattern: Pattern) -> str:
    """The name of a shipped result; it contains the digest of the kernel's text, so a changed text has no result."""
    return f"{kernel.name}.{pattern}.{kernel.digest()[:DIGEST_BYTES]}"


def written_bytes(kernel: Kernel, results: Buffers) -> bytes:
    """The values of all written buffers, in the order in which the kernel declares them."""
    columns = (results[buffer.name][slot.name] for buffer in kernel.buffers if buffer.written for slot in buffer.slots)
    return b"".join(column.tobytes() for column in columns)


def results_digest(kernel: Kernel, results: Buffers) -> bytes:
    """Digest of all written values."""
    return hashlib.sha256(written_bytes(kernel, results)).digest()[:DIGEST_BYTES]


def verify(kernel: Kernel, pattern: Pattern, results: Buffers) -> None:
    """Raise ResultError if the results of a small launch on operands of a pattern differ from the expected ones.

    Exact kernels must agree bit for bit; the others within their tolerance, relative to the largest number of the slot.
    """
    name = result_name(kernel, pattern)
    digests, values = _shipped()
    if name in values:
        compare(kernel, results, _unpacked(kernel, kernel.check_launch(pattern), values[name]))
    elif name not in digests:
        raise ResultError(f"{kernel.name}: no result of this text on {pattern} operands is shipped, so that none can be checked")
    elif results_digest(kernel, results) != digests[name]:
        raise ResultError(f"{kernel.name}: results on {pattern} operands are not those shipped; the launch or the board corrupts results")


def _unpacked(kernel: Kernel, launch: Launch, packed: NDArray[np.uint8]) -> Buffers:
    """Records of the written buffers from the bytes of `written_bytes`."""
    found: dict[str, NDArray[Any]] = {}
    place = 0
    for buffer in kernel.buffers:
        if buffer.written:
            records = found[buffer.name] = np.zeros(buffer_records(buffer, launch), dtype=record_type(buffer))
            for slot in buffer.slots:
                column = records[slot.name]
                records[slot.name] = packed[place : place + column.nbytes].view(column.dtype)
                place += column.nbytes
    return found


def compare(kernel: Kernel, results: Buffers, wanted: Buffers) -> None:
    """Raise ResultError with place and difference if a written buffer differs from the expected one by more than the tolerance."""
    for buffer in kernel.buffers:
        for slot in buffer.slots if buffer.written else ():
            got, right = (np.ascontiguousarray(held[buffer.name][slot.name]) for held in (results, wanted))
            numbers, expected = decode(got, slot.kind), decode(right, slot.kind)
            scale = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected))) or 1.0
            with np.errstate(invalid="ignore"):
                near = np.abs(numbers - expected) <= kernel.tolerance * scale
            wrong = ~(near | (np.isnan(numbers) & np.isnan(expected))).reshape(got.size, -1).all(axis=1)
            if wrong.any():
                first = int(np.argmax(wrong))
                raise ResultError(
                    f"{kernel.name}: {int(wrong.sum())} of {got.size} values of {buffer.name}.{slot.name} are wrong; "
                    f"record {first} holds {got[first]}, {right[first]} is right; the launch or the board corrupts results"
                )
