"""What the page asks, each field declared, and checked before anything is computed."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from estimator.serve.local_site import RequestError
from estimator.transforms.rescaling import LARGEST_SIZE, Sizes
from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.errors import SpecificationError
from estimator.vocabulary.reader import FaultError, Span, read

MOST_REQUEST_BYTES: Final = 16 << 10
"""A request of the page has a few hundred bytes."""

LONGEST_TEXT: Final = 200
LARGEST_NUMBER: Final = 1e9
"""No clock [MHz] and no power [W] comes near this."""

T = TypeVar("T")


def _plain(text: str) -> None:
    if len(text) > LONGEST_TEXT or not (text.isprintable() and text.isascii()):
        raise FaultError(f"must be a plain text of at most {LONGEST_TEXT} characters")


Name = Annotated[str, _plain]
Size = Annotated[int, Span(1, LARGEST_SIZE)]
Positive = Annotated[float, Span(1e-9, LARGEST_NUMBER)]


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """The sizes for which a workload was written down."""

    batch: Size
    sequence: Size | None = None

    def sizes(self) -> Sizes:
        """The same as a workload's."""
        return Sizes(batch=self.batch, sequence=self.sequence or 0)


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

    workload: Name
    bundle: Name
    gpu: Name | None = None
    precision: Name | None = None
    attention: Name | None = None
    at: At | None = None
    batch: Size | None = None
    sequence: Size | None = None
    clock_mhz: Positive | None = None
    power_cap_w: Positive | None = None
    host_launch_us: Annotated[float, Span(0.0, LARGEST_NUMBER)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A workload whose choices are asked for."""

    workload: Name
    at: At | None = None


def parse_request(kind: type[T], content: bytes) -> T:
    """What a request's body holds, as declared.  Raises RequestError, naming the field."""
    try:
        document: Any = parse_json(content)
        return read(kind, document)
    except ValueError as error:
        raise RequestError(f"the request: {error}") from error


def check_gpu(name: str, known: tuple[str, ...]) -> None:
    """Refuse a GPU that is not shipped: a name from the page is never taken for a file.  Raises SpecificationError."""
    if name not in known:
        raise SpecificationError(f"unknown GPU {name!r}; known: {', '.join(known)}")
