"""Immutable mappings: the content of a bundle or a specification does not change after its check."""

from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeVar

V = TypeVar("V")


class FrozenMapping(dict[str, V]):
    """A read-only mapping from names, in the given order.  Hashable if its values are; can be pickled.

    It is a dictionary because an estimate looks up a bundle's entries a thousand times, and a dictionary is the fastest mapping.
    """

    __slots__ = ("_hash",)
    _hash: int | None

    def __init__(self, items: Mapping[str, V]) -> None:
        super().__init__(items)
        self._hash = None

    def __hash__(self) -> int:  # type: ignore[override]
        if self._hash is None:  # mappings with long columns are hashed often
            self._hash = hash(frozenset(self.items()))
        return self._hash

    def __reduce__(self) -> tuple[type["FrozenMapping[V]"], tuple[dict[str, V]]]:
        return type(self), (dict(self),)  # not the hash: another process hashes texts differently

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a FrozenMapping cannot be changed; make a dictionary of it")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


EMPTY: Final[FrozenMapping[Any]] = FrozenMapping({})
