"""Check of results against the expected results of each kernel's small launch, which ship with this file; exact ones as digests.

They belong to `Kernel.check_launch`; the tests execute the kernels' own text to get them (`tests/microbench/expected.py` writes them).
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from microbench.errors import ResultError
from microbench.kernel import Buffers, Kernel, Launch, Pattern
from microbench.numbers import decode
from microbench.operands import buffer_records, record_type

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
