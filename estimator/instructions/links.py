"""Energy and rate of data that cross a link, and of copies: the table `links` of a bundle's section `instruction_energies`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from estimator.errors import BundleError

LINK_FIELDS: Final = ("link", "bytes_per_s", "j_per_byte", "std_j", "runs")
"""Fields of an entry."""

WHY_UNKNOWN: Final = "why_unknown"
"""The field that is there only where the energy is not known."""

LINK_NAMES: Final = ("host", "peer", "device")
"""What data cross: PCI Express, a link to another GPU, nothing (a copy within the board)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnergy:
    """What crossing costs this board.

    bytes_per_s        rate over the link [byte/s]
    j_per_byte, std_j  energy beyond the board at rest for each byte, and its standard deviation; nan where rest was not known [J]
    runs               measured
    why_unknown        why the energy is not known; "" where it is
    """

    link: str
    bytes_per_s: float
    j_per_byte: float
    std_j: float
    runs: int
    why_unknown: str = ""


def links_document(links: Mapping[str, LinkEnergy]) -> dict[str, Any]:
    """The table as a bundle holds it; what is not known is null."""
    return {
        name: {
            "link": one.link,
            "bytes_per_s": one.bytes_per_s,
            "j_per_byte": one.j_per_byte if math.isfinite(one.j_per_byte) else None,
            "std_j": one.std_j if math.isfinite(one.std_j) else None,
            "runs": one.runs,
            **({WHY_UNKNOWN: one.why_unknown} if one.why_unknown else {}),
        }
        for name, one in links.items()
    }


def links_from_document(document: Any, at: str) -> dict[str, LinkEnergy]:
    """The table of a bundle.  Raises BundleError, naming `at`, for one that is damaged."""
    if not isinstance(document, Mapping):
        raise BundleError(f"{at} is damaged (no table); fit again")
    found = {}
    for name, entry in document.items():
        if not isinstance(entry, Mapping) or set(entry) - {WHY_UNKNOWN} != set(LINK_FIELDS):
            raise BundleError(f"{at}.{name} is damaged (its fields are not {', '.join(LINK_FIELDS)}); fit again")
        if entry["link"] not in LINK_NAMES:
            raise BundleError(f"{at}.{name}.link = {str(entry['link'])[:20]!r} is damaged; known: {', '.join(LINK_NAMES)}")
        why = entry.get(WHY_UNKNOWN, "")
        if not isinstance(why, str):
            raise BundleError(f"{at}.{name}.{WHY_UNKNOWN} = {str(why)[:20]!r} is damaged (a text is wanted); fit again")
        figures = {}
        for field in LINK_FIELDS[1:]:
            value = entry[field]
            if value is None and field in ("j_per_byte", "std_j"):
                figures[field] = math.nan
                continue
            known = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
            if not known or (field != "j_per_byte" and value < 0):
                raise BundleError(f"{at}.{name}.{field} = {str(value)[:20]!r} is damaged (a number that can be is wanted); fit again")
            figures[field] = float(value)
        found[str(name)] = LinkEnergy(
            link=entry["link"],
            bytes_per_s=figures["bytes_per_s"],
            j_per_byte=figures["j_per_byte"],
            std_j=figures["std_j"],
            runs=int(figures["runs"]),
            why_unknown=why or ("reason not recorded; fit again" if math.isnan(figures["j_per_byte"]) else ""),
        )
    return found
