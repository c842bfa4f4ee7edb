"""The form of values: frozen dataclasses with slots, made from keywords alone."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Class = TypeVar("Class")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(cls: type[Class]) -> type[Class]:
    """A frozen dataclass with slots, made from keywords alone."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)
