"""Energy and rate of data that cross a link, and of copies: the table `links` of a bundle's section `instruction_energies`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.reader import WHEN_GIVEN, Count, FaultError, Span, Words, plain, read

LINK_NAMES: Final = ("host", "peer", "device")

EnergyJ = Annotated[float, Span(-1e-3, 1e-3, "J", nan=True)]
"""Of one instruction, transaction or byte; null where it is not known."""

EnergyStdJ = Annotated[float, Span(0.0, 1e-3, "J", nan=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnergy:
    """What crossing a link, or copying, costs this board."""

    link: Annotated[str, Words(LINK_NAMES), "what data cross: PCI Express, a link to another GPU, nothing (a copy within the board)"]
    bytes_per_s: Annotated[float, Span(0.0, 1e15, "byte/s"), "rate over the link"]
    j_per_byte: Annotated[EnergyJ, "energy beyond the board at rest for each byte; null where rest was not known"]
    std_j: Annotated[EnergyStdJ, "its standard deviation"]
    runs: Annotated[Count, "measured"]
    why_unknown: Annotated[str, "why the energy is not known"] = field(default="", metadata=WHEN_GIVEN)


def links_document(links: Mapping[str, LinkEnergy]) -> dict[str, Any]:
    """The table as a bundle holds it; what is not known is null."""
    found: dict[str, Any] = plain(links)
    return found


def links_from_document(document: Any, at: str) -> dict[str, LinkEnergy]:
    """The table of a bundle.  Raises BundleError, naming `at`, for one that is damaged."""
    try:
        found: dict[str, LinkEnergy] = read(Mapping[str, LinkEnergy], document, at)
    except FaultError as fault:
        raise BundleError(str(fault)) from None
    return found
