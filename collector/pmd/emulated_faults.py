"""Faults that an emulated meter's line can have, each at its time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.devices.errors import DeviceError
from collector.pmd.packets import PACKET_BYTES
from estimator.vocabulary.quantities import Array

FAULT_KINDS: Final = {
    "lost": "bytes that do not arrive",
    "doubled": "bytes that arrive twice",
    "garbled": "bytes that arrive changed",
    "hole": "seconds whose packets do not arrive",
    "stall": "seconds for which everything is held back, to arrive in one burst",
    "silence": "the meter stops sending for good",
    "unplug": "the port vanishes",
}
"""Kinds, and what their amount counts."""
COUNTED_IN_BYTES: Final = ("lost", "doubled", "garbled")
DEFAULT_HOLE_S: Final = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: its kind, seconds after the stream began, and bytes or seconds of it."""

    kind: str
    at_s: float
    amount: float


def fault_from_text(text: str) -> Fault:
    """A fault from KIND@SECONDS or KIND@SECONDS:AMOUNT.  Raises DeviceError."""
    parts = re.fullmatch(r"([a-z]+)@(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?))?", text.strip())
    if not parts or parts[1] not in FAULT_KINDS:
        raise DeviceError(f"{text!r} is no fault; give KIND@SECONDS or KIND@SECONDS:AMOUNT with KIND one of {', '.join(FAULT_KINDS)}")
    default = 1.0 if parts[1] in COUNTED_IN_BYTES else DEFAULT_HOLE_S
    return Fault(kind=parts[1], at_s=float(parts[2]), amount=float(parts[3] or default))


class FaultyLine:
    """The line between an emulated meter and its host; bytes go in with their times, and come out as the host gets them."""

    def __init__(self, faults: Sequence[Fault], random: np.random.Generator) -> None:
        self._faults = tuple(sorted(faults, key=lambda fault: fault.at_s))
        self._random = random
        self._pending = [fault for fault in self._faults if fault.kind in COUNTED_IN_BYTES]
        self._held = b""

    def unplugged(self, time_s: float) -> bool:
        """Whether the port has vanished."""
        return any(fault.kind == "unplug" and time_s >= fault.at_s for fault in self._faults)

    def passed(self, packets: bytes, packet_s: Array, now_s: float) -> bytes:
        """What the host gets of packets sent at `packet_s`, shape (n,), the time being `now_s`."""
        keep = np.ones(len(packet_s), dtype=np.bool_)
        for fault in self._faults:
            if fault.kind == "hole":
                keep &= (packet_s < fault.at_s) | (packet_s >= fault.at_s + fault.amount)
            elif fault.kind == "silence":
                keep &= packet_s < fault.at_s
        content = np.frombuffer(packets, np.uint8).reshape(-1, PACKET_BYTES)[keep].tobytes()
        content = self._spoiled(content, packet_s[keep])
        if any(fault.kind == "stall" and fault.at_s <= now_s < fault.at_s + fault.amount for fault in self._faults):
            self._held += content
            return b""
        content, self._held = self._held + content, b""
        return content

    def _spoiled(self, content: bytes, packet_s: Array) -> bytes:
        """The packets with the bytes lost, doubled or garbled whose time has come."""
        while self._pending and len(packet_s) and packet_s[-1] >= self._pending[0].at_s:
            fault = self._pending.pop(0)
            start = int(np.searchsorted(packet_s, fault.at_s)) * PACKET_BYTES + int(self._random.integers(PACKET_BYTES))
            end = min(start + int(fault.amount), len(content))
            part = content[start:end]
            if fault.kind == "lost":
                part = b""
            elif fault.kind == "doubled":
                part = part * 2
            else:
                part = (np.frombuffer(part, np.uint8) ^ self._random.integers(1, 256, len(part), dtype=np.uint8)).tobytes()
            content = content[:start] + part + content[end:]
        return content
