"""What the clock helper and its clients say: one JSON object a line, versioned; anything else is refused by name."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1
LONGEST_REQUEST: Final = 1024
"""Bytes of a request, its line end included; the longest that means something has 170."""

LONGEST_REPLY: Final = 65_536
"""Bytes of a reply; a status of eight boards has 2000."""

DEFAULT_SOCKET: Final = Path("/run/wattprint-clocks/socket")
LONGEST_PATH: Final = 107
"""Bytes of a socket's path (sun_path of unix(7), less its end)."""

KEYS: Final = {
    "status": frozenset[str](),
    "lock": frozenset({"uuid", "sm_clock_mhz"}),
    "renew": frozenset[str](),
    "unlock": frozenset[str](),
}
"""What each request carries beside "version" and "do"."""


class OddMessageError(Exception):
    """A line that is no message of this protocol; `code` names what is wrong with it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asks; `uuid` and `sm_clock_mhz` [MHz] only where a clock is to be locked."""

    do: str
    uuid: str = ""
    sm_clock_mhz: int = 0


def message(line: bytes) -> dict[str, Any]:
    """The object of a line.  Raises OddMessageError for what is no JSON object of this version, written once and in full."""
    try:
        document = json.loads(line.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise OddMessageError("bad_json", "not one JSON object in UTF-8 on a line") from error
    if not isinstance(document, dict):
        raise OddMessageError("bad_json", "not a JSON object")
    if type(document.get("version")) is not int or document["version"] != VERSION:
        raise OddMessageError("bad_version", f'this side speaks "version": {VERSION}; both sides must be of one release')
    return document


def request(line: bytes) -> Request:
    """What a client's line asks.  Raises OddMessageError."""
    document = message(line)
    do = document.get("do")
    if not isinstance(do, str) or do not in KEYS:
        raise OddMessageError("bad_request", f'"do" must be one of {", ".join(KEYS)}')
    if document.keys() != {"version", "do"} | KEYS[do]:
        raise OddMessageError("bad_request", f'"{do}" takes {", ".join(sorted(KEYS[do])) or "nothing"} beside "version" and "do"')
    uuid, clock = document.get("uuid", ""), document.get("sm_clock_mhz", 0)
    if not isinstance(uuid, str) or type(clock) is not int:
        raise OddMessageError("bad_request", '"uuid" must be a text and "sm_clock_mhz" a whole number')
    return Request(do=do, uuid=uuid, sm_clock_mhz=clock)


def line_of(**content: Any) -> bytes:
    """A message as it is sent."""
    return json.dumps({"version": VERSION, **content}, allow_nan=False).encode() + b"\n"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")
