"""Contents of a kernel's buffers, from pattern and seed, the same on every host."""

import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from estimator.vocabulary.quantities import Array
from microbench.errors import LaunchError
from microbench.kernel import Buffer, Kernel, Launch, Slot
from microbench.numbers import STORAGE, decode, encode

WHOLE: Final = ("u32", "s32", "u64", "s64", "u8x4")
"""Kinds that are drawn as whole words."""

LINK_BYTES = 8

DRAWN_RECORDS: Final = 1 << 20
"""Records that are drawn for a buffer; a longer one repeats them: drawing hundreds of megabytes costs a host 15 to 20 s."""


def record_type(buffer: Buffer) -> np.dtype[np.void]:
    """The record of a buffer: each slot at a multiple of its own size, the whole a multiple of the widest."""
    return np.dtype([(slot.name, STORAGE[slot.kind]) for slot in buffer.slots], align=True)


def buffer_records(buffer: Buffer, launch: Launch) -> int:
    """Number of records of a buffer in a launch.  Raises LaunchError if a region does not hold whole records."""
    match buffer.per:
        case "thread":
            return launch.threads * buffer.records
        case "block":
            return launch.blocks * buffer.records
        case "launch":
            return buffer.records
        case _:
            size = record_type(buffer).itemsize
            if launch.region_bytes <= 0 or launch.region_bytes % size:
                raise LaunchError(f"buffer {buffer.name}: a region of {launch.region_bytes} bytes is not whole records of {size} bytes")
            return launch.region_bytes * (1 if buffer.per == "common" else launch.walked_regions) // size


def buffer_bytes(kernel: Kernel, launch: Launch) -> int:
    """Memory of all buffers of a launch [byte]."""
    return sum(buffer_records(buffer, launch) * record_type(buffer).itemsize for buffer in kernel.buffers)


def contents(buffer: Buffer, launch: Launch, address: int = 0) -> NDArray[Any]:
    """The initial records of a buffer, shape (records,): all of a chase, at most DRAWN_RECORDS of others, which the buffer repeats.

    `address` is its address on the device, for chases, which hold addresses.  Written buffers are zeros unless they are `filled`.
    """
    count = min(buffer_records(buffer, launch), DRAWN_RECORDS)
    if buffer.chase_stride:
        regions = 1 if buffer.per == "common" else launch.walked_regions
        links = chase_addresses(launch.region_bytes, regions, buffer.chase_stride, address)
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
