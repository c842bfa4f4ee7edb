"""Memory that a kernel or a copy reaches: the board's own, pinned memory of the host, another board's over the link between them."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from microbench.errors import DeviceMemoryError, UnsupportedError
from microbench.runners.cupy_device import CupyDevice

Place = Literal["device", "peer", "host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """So many bytes at a place; `argument` is what a launch passes for their address, `kept` keeps them allocated."""

    place: Place
    ordinal: int
    address: int
    bytes: int
    argument: Any
    kept: Any


def place_bytes(device: CupyDevice, place: Place, size: int, who: str) -> Placed:
    """Memory at a place; `who` wants it.

    Raises UnsupportedError where no other board can be reached, DeviceMemoryError where there is too little.
    """
    if place == "host":
        pinned = device.pinned(size, who)
        address = int(pinned.ptr)
        return Placed(place=place, ordinal=-1, address=address, bytes=size, argument=np.uint64(address), kept=pinned)
    ordinal = device.ordinal if place == "device" else peer_ordinal(device, who)
    free = device.free_bytes_of(ordinal)
    if size > free:
        raise DeviceMemoryError(f"{who}: needs {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; take a smaller footprint")
    array = device.empty_on(ordinal, size)
    address = int(array.data.ptr)
    argument = array if place == "device" else np.uint64(address)
    return Placed(place=place, ordinal=ordinal, address=address, bytes=size, argument=argument, kept=array)


def peer_ordinal(device: CupyDevice, who: str) -> int:
    """Another board whose memory this one reaches directly.  Raises UnsupportedError where there is none."""
    ordinal = device.peer()
    if ordinal is None:
        raise UnsupportedError(f"{who}: needs the memory of another GPU; this board reaches none (NVLink or PCIe peer access)")
    return ordinal


def fill(device: CupyDevice, placed: Placed, values: NDArray[Any]) -> None:
    """Writes bytes, shape (n,), from the host."""
    if placed.place == "host":
        device.pinned_view(placed.kept, placed.bytes)[:] = values.view(np.uint8)
    else:
        device.fill_on(placed.ordinal, placed.kept, values.view(np.int8))


def contents_of(device: CupyDevice, placed: Placed) -> NDArray[np.uint8]:
    """A copy of the bytes on the host, shape (n,)."""
    if placed.place == "host":
        return np.array(device.pinned_view(placed.kept, placed.bytes))
    return np.array(device.raw_to_host(placed.kept)).view(np.uint8)
