"""What the page asks, checked field by field before anything is computed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from estimator.documents import parse_json
from estimator.errors import SpecificationError
from estimator.forms.rescaling import LARGEST_SIZE, Sizes
from estimator.local_site import RequestError

MOST_REQUEST_BYTES: Final = 16 << 10
"""A request of the page has a few hundred bytes."""

LONGEST_TEXT: Final = 200
LARGEST_NUMBER: Final = 1e9
"""No clock [MHz] and no power [W] comes near this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One operating point: keys of a workload and a bundle, and settings; None and "" leave a setting as it is.

    gpu                 name of another GPU than the bundle's, "" for its own
    precision           "" as written
    attention           "eager", "flash", "" as written
    at                  the sizes for which the workload was written down, where the user states them
    batch, sequence     the sizes wanted
    clock_mhz           asked SM clock [MHz], None for the one of the published peak rates
    power_cap_w         power limit [W], None for the GPU's own
    host_launch_us      host cost of one framework operator [µs], None for the bundle's
    """

    workload: str
    bundle: str
    gpu: str = ""
    precision: str = ""
    attention: str = ""
    at: Sizes | None = None
    batch: int | None = None
    sequence: int | None = None
    clock_mhz: float | None = None
    power_cap_w: float | None = None
    host_launch_us: float | None = None


def parse_question(content: bytes) -> Question:
    """The question in a request's body.  Raises RequestError, naming the field."""
    given = parse_object(content)
    known = Question.__slots__
    refuse_unknown(given, known)
    for name in ("workload", "bundle"):
        if name not in given:
            raise RequestError(f"the field {name!r} is missing")
    return Question(
        workload=_text(given, "workload"),
        bundle=_text(given, "bundle"),
        gpu=_text(given, "gpu"),
        precision=_text(given, "precision"),
        attention=_text(given, "attention"),
        at=parse_sizes(given.get("at")),
        batch=_size(given.get("batch"), "batch"),
        sequence=_size(given.get("sequence"), "sequence"),
        clock_mhz=_number(given.get("clock_mhz"), "clock_mhz"),
        power_cap_w=_number(given.get("power_cap_w"), "power_cap_w"),
        host_launch_us=_number(given.get("host_launch_us"), "host_launch_us", zero=True),
    )


def parse_object(content: bytes) -> Mapping[str, Any]:
    """The JSON object in a body: no NaN, no field twice.  Raises RequestError."""
    try:
        document = parse_json(content)
    except ValueError as error:
        raise RequestError(f"the request: {error}") from error
    if not isinstance(document, dict):
        raise RequestError("the request must be a JSON object")
    return document


def refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raises RequestError for a field that is not known."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise RequestError(f"unknown field {_short(unknown[0])}; known: {', '.join(known)}")


def parse_sizes(value: Any) -> Sizes | None:
    """The sizes in {"batch": 8, "sequence": 512}, of which sequence may be left out; None for null.  Raises RequestError."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RequestError('at must be an object such as {"batch": 8, "sequence": 512}')
    refuse_unknown(value, ("batch", "sequence"))
    batch = _size(value.get("batch"), "at.batch")
    if batch is None:
        raise RequestError("at.batch is missing")
    return Sizes(batch=batch, sequence=_size(value.get("sequence"), "at.sequence") or 0)


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or not (value.isprintable() and value.isascii()):
        raise RequestError(f"{name} = {_short(value)} must be a plain text of at most {LONGEST_TEXT} characters")
    return value


def _size(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_SIZE:
        raise RequestError(f"{name} = {_short(value)} must be a whole number from 1 to {LARGEST_SIZE}")
    return value


def _number(value: Any, name: str, *, zero: bool = False) -> float | None:
    """A number above 0, or with `zero` of at least 0, up to LARGEST_NUMBER; None for null.  Raises RequestError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_NUMBER or not (value or zero):
        least = "of at least" if zero else "above"
        raise RequestError(f"{name} = {_short(value)} must be a number {least} 0 and at most {LARGEST_NUMBER:.0e}")
    return float(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_TEXT // 4 else f"{text[: LONGEST_TEXT // 4]}…"


def check_gpu(name: str, known: tuple[str, ...]) -> None:
    """Refuse a GPU that is not shipped: a name from the page is never taken for a file.  Raises SpecificationError."""
    if name and name not in known:
        raise SpecificationError(f"unknown GPU {_short(name)}; known: {', '.join(known)}")
