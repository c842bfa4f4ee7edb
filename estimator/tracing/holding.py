"""Bytes that tensors hold while a model runs, counted as they come and go.

A tensor of the meta device has a storage of the size that it would have on a GPU, and Python lets go of it at the same place: what is
alive together here is alive together there.  Libraries' workspaces, the driver's context and what an allocator rounds up are not seen.
"""

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

DEEPEST: Final = 5
"""Objects within objects that may hold tensors: a cache, its layers, their keys."""


class Held:
    """Storages that are alive: `now_byte` of them at present, `most_byte` at the fullest time."""

    def __init__(self) -> None:
        self.now_byte = 0
        self.most_byte = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def add(self, tensors: Iterable[Any]) -> int:
        """Count the storages of these tensors on the meta device that are not counted yet, until they go; what they add [byte]."""
        before = self.now_byte
        for tensor in tensors:
            storage = tensor.untyped_storage() if tensor.device.type == "meta" else None
            if storage is None or storage._cdata in self._alive:
                continue
            size = storage.nbytes()
            self._alive[storage._cdata] = weakref.ref(storage, partial(self._gone, storage._cdata, size))
            self.now_byte += size
        self.most_byte = max(self.most_byte, self.now_byte)
        return self.now_byte - before

    def _gone(self, key: int, size: int, _reference: "weakref.ref[Any]") -> None:
        del self._alive[key]
        self.now_byte -= size


def tensors_within(torch: Any, value: Any, depth: int = DEEPEST) -> list[Any]:
    """Tensors in a value, in what it lists and names, and in the attributes of objects."""
    if isinstance(value, torch.Tensor):
        return [value]
    if depth == 0:
        return []
    parts = (
        value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else getattr(value, "__dict__", {}).values()
    )
    return [tensor for part in parts for tensor in tensors_within(torch, part, depth - 1)]
