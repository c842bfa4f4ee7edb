"""The form of values: frozen dataclasses with slots, made from keywords alone."""

from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, dataclass_transform

Class = TypeVar("Class")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(cls: type[Class]) -> type[Class]:
    """A frozen dataclass with slots, made from keywords alone."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


class Columns:
    """Arrays of one length, a slot for each; a subclass declares them with `arrays`."""

    __slots__: tuple[str, ...] = ()

    def select(self, index: Any) -> Self:
        """The entries `index` of every column: rows (repeats allowed), or rows and what else has an axis."""
        return type(self)(**{name: getattr(self, name)[index] for name in self.__slots__})


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(field,))
def arrays(cls: type[Class]) -> type[Class]:
    """`frozen` for a class that holds arrays: a value equals itself alone."""
    return dataclass(frozen=True, slots=True, kw_only=True, eq=False)(cls)
