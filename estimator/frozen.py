"""Mappings that cannot change: what a bundle or a specification holds stays as it was checked."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, TypeVar

V = TypeVar("V")


class FrozenMapping(Mapping[str, V]):
    """A read-only mapping from names, in the order given.  Hashable where its values are; can be pickled."""

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[str, V]) -> None:
        self._items = dict(items)
        self._hash: int | None = None

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:  # these four are several times faster than those of Mapping
        return key in self._items

    def keys(self) -> KeysView[str]:
        """As of a dictionary."""
        return self._items.keys()

    def values(self) -> ValuesView[V]:
        """As of a dictionary."""
        return self._items.values()

    def items(self) -> ItemsView[str, V]:
        """As of a dictionary."""
        return self._items.items()

    def __hash__(self) -> int:
        if self._hash is None:  # what holds long columns is asked for its hash again and again
            self._hash = hash(frozenset(self._items.items()))
        return self._hash

    def __reduce__(self) -> tuple[type["FrozenMapping[V]"], tuple[dict[str, V]]]:
        return type(self), (self._items,)  # not the hash: another process hashes texts differently

    def __repr__(self) -> str:
        return f"FrozenMapping({self._items!r})"


def thaw(value: Any) -> Any:
    """Plain dictionaries and lists, free to change, of mappings and tuples."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    return value
