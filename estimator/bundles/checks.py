"""Checks of plain JSON data: each gives the value back, frozen, or says by its keys what is wrong with it.

Every check takes the value and `at`, its place (`groups.gemm.coefficients.math`), and raises BundleError.  Numbers are held
to their limits (`estimator.bundles.limits`).  Long columns are looked at in one go; item by item only where something is wrong with
them, to say what.
"""

import math
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Any, Final, TypeVar

from estimator.bundles.content import Numbers
from estimator.bundles.limits import COUNT, Limits
from estimator.errors import BundleError
from estimator.frozen import FrozenMapping
from estimator.kinds import kind_of
from estimator.specifications import near_match

T = TypeVar("T")

LARGEST_WHOLE: Final = 2**63
"""Beyond this no count in a bundle means anything, and floats run out of range [1]."""

ANY: Final[Limits] = (-math.inf, math.inf, "")
"""Limits of what only has to be finite."""


def mapping_of(value: Any, at: str) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(value, dict | Mapping):  # a dictionary is known at once, any other mapping by asking
        raise BundleError(f"{at} must be an object, got {kind_of(value)}")
    return value


def fields_of(value: Any, at: str, required: Collection[str], optional: Collection[str] = ()) -> Mapping[str, Any]:
    """An object with all of the required fields, and others only if they are optional ones."""
    mapping = mapping_of(value, at)
    for key in mapping:
        if key not in required and key not in optional:
            raise BundleError(f"{at} has an unknown field {key!r}{near_match(key, [*required, *optional])}")
    for name in required:
        if name not in mapping:
            raise BundleError(f"{at} lacks the field {name!r}")
    return mapping


def each(value: Any, at: str, check: Callable[[Any, str], T]) -> FrozenMapping[T]:
    """An object whose every item passes `check`."""
    return FrozenMapping({key: check(item, f"{at}.{key}") for key, item in mapping_of(value, at).items()})


def refuse_unknown(names: Collection[str], at: str, known: Collection[str]) -> None:
    """Refuse names that are not among `known`."""
    if set(names).difference(known):
        name = next(name for name in names if name not in known)
        raise BundleError(f"{at} has an unknown name {name!r}{near_match(name, known)}")


def named_numbers(value: Any, at: str, limits: Mapping[str, Limits]) -> FrozenMapping[float]:
    """Numbers under the names of `limits`, each within its own."""
    mapping = mapping_of(value, at)
    refuse_unknown(mapping, at, limits)
    for name, item in mapping.items():
        low, high, _ = limits[name]
        if type(item) is not float or not low <= item <= high:
            return FrozenMapping({key: number(one, f"{at}.{key}", limits[key]) for key, one in mapping.items()})
    return FrozenMapping(mapping)


def truths(value: Any, at: str) -> FrozenMapping[bool]:
    """Truth values by name."""
    mapping = mapping_of(value, at)
    return FrozenMapping(mapping) if set(map(type, mapping.values())) <= {bool} else each(mapping, at, truth)


def list_of(value: Any, at: str) -> list[Any] | tuple[Any, ...]:
    """A list."""
    if not isinstance(value, list | tuple):
        raise BundleError(f"{at} must be a list, got {kind_of(value)}")
    return value


def text_of(value: Any, at: str, *, empty: bool = False) -> str:
    """A text, by default not an empty one."""
    if not isinstance(value, str) or not (value or empty):
        raise BundleError(f"{at} must be a text, got {'an empty one' if value == '' else kind_of(value)}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise BundleError(f"{at} holds half a character (a lone surrogate)")
    return value


def line_of(value: Any, at: str) -> str:
    """A text that stands in every table: on one line, without control characters."""
    if not text_of(value, at).isprintable():
        raise BundleError(f"{at} holds a character that cannot be printed")
    return str(value)


def truth(value: Any, at: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise BundleError(f"{at} must be true or false, got {kind_of(value)}")
    return value


def number(value: Any, at: str, limits: Limits = ANY) -> float:
    """A finite number within limits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BundleError(f"{at} must be a number{_allowed(limits)}, got {kind_of(value)}")
    try:
        found = float(value)
    except OverflowError as error:
        raise BundleError(f"{at} is too large; it must be a number{_allowed(limits)}") from error
    if not math.isfinite(found):
        raise BundleError(f"{at} = {found!r} must be finite")
    if not limits[0] <= found <= limits[1]:
        raise BundleError(f"{at} = {found!r} lies outside {_range(limits)}")
    return found


def _allowed(limits: Limits) -> str:
    return "" if math.inf in limits else f" from {_range(limits)}"


def _range(limits: Limits) -> str:
    """The limits in words."""
    low, high, unit = limits
    return f"{low:g} to {high:g} {unit}".rstrip()


def deviation(value: Any, at: str, limits: Limits) -> float:
    """A standard deviation; null, which is unknown, becomes nan."""
    return math.nan if value is None else number(value, at, limits)


def count(value: Any, at: str, limits: Limits = COUNT) -> int:
    """A whole number within limits, by default of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BundleError(f"{at} must be a whole number from {_range(limits)}, got {kind_of(value)}")
    if not limits[0] <= value <= limits[1]:
        shown = str(value) if abs(value) < LARGEST_WHOLE else "a larger number"
        raise BundleError(f"{at} = {shown} lies outside {_range(limits)}")
    return value


def _finite_floats(items: Collection[Any]) -> bool:
    """Whether all are finite floats, and there is one; told at C speed, for long columns."""
    return set(map(type, items)) == {float} and all(map(math.isfinite, items))


def _finite_numbers(items: Collection[Any]) -> bool:
    """Whether all are finite numbers of usual size, and there is one; at C speed.  Where not, item by item tells what is wrong."""
    kinds = set(map(type, items))
    if kinds == {float}:
        return all(map(math.isfinite, items))
    # The bounds come first: a whole number of thousands of digits is no float.
    return (
        bool(kinds)
        and kinds <= {int, float}
        and -LARGEST_WHOLE <= min(items) <= max(items) <= LARGEST_WHOLE
        and all(map(math.isfinite, items))
    )


def numbers_of(value: Any, at: str, limits: Limits = ANY, *, length: int) -> Numbers:
    """A list of `length` finite numbers within limits, as floats."""
    items = list_of(value, at)
    if _finite_floats(items) and limits[0] <= min(items) and max(items) <= limits[1]:
        numbers: Numbers = tuple(items)
    else:
        numbers = tuple(number(item, f"{at}[{i}]", limits) for i, item in enumerate(items))
    if len(numbers) != length:
        raise BundleError(f"{at} has {len(numbers)} values where {length} are needed")
    return numbers


def ascending(value: Any, at: str, limits: Limits) -> Numbers:
    """Ascending numbers within limits, at least one."""
    items = list_of(value, at)
    numbers = numbers_of(items, at, limits, length=len(items))
    if not numbers or any(left >= right for left, right in pairwise(numbers)):
        raise BundleError(f"{at} must ascend and hold at least one clock")
    return numbers


def number_range(value: Any, at: str, limits: Limits = ANY) -> tuple[float, float]:
    """The ends of a range, in order."""
    first, last = numbers_of(value, at, limits, length=2)
    if first > last:
        raise BundleError(f"{at} = [{first!r}, {last!r}] must ascend")
    return first, last


def free(value: Any, at: str) -> Any:
    """An object whose inside the format leaves open: any JSON with finite numbers, frozen."""
    return frozen(mapping_of(value, at), at)


def frozen(value: Any, at: str) -> Any:
    """Any JSON with finite numbers, as tuples and frozen mappings."""
    if isinstance(value, list | tuple):
        if _finite_numbers(value):
            return tuple(value)
        return tuple(frozen(item, f"{at}[{i}]") for i, item in enumerate(value))
    if isinstance(value, Mapping):
        return FrozenMapping({key: frozen(item, f"{at}.{key}") for key, item in value.items()})
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        raise BundleError(f"{at} is a whole number of more than 64 bits")
    return number(value, at) if isinstance(value, float) else _whole(value, at)


def _whole(value: Any, at: str) -> int:
    if not isinstance(value, int):
        raise BundleError(f"{at} is no JSON value: {kind_of(value)}")
    return value
