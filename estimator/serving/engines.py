"""Serving engines as data: what their hosts cost, how they schedule, and which share of the memory they take (`configs/engines`)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from estimator.vocabulary.errors import OperatingPointError
from estimator.vocabulary.reader import Span, Text, Words, read_file
from estimator.vocabulary.resources import resource_folder, resource_names
from estimator.vocabulary.workload import LIBRARIES

OTHER_VERSION_SPREAD: Final = 0.5
"""Relative half width of the 90 % interval of a host's time where the engine's version is not the one of the fit, or not known [1]:
constants of one engine differ by as much between versions and servers (assumed)."""

USUAL: Final = "vllm"
"""The engine of an answer for which none is named."""

Seconds = Annotated[float, Span(0.0, 10.0, "s")]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Time of the host in which the boards wait: of a step, of each sequence in it, of each request; relative half width of its 90 %."""

    step_s: Seconds
    sequence_s: Seconds
    request_s: Seconds
    spread: Annotated[float, Span(0.0, 1.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A serving engine of one version.

    library        whose kernels it launches
    queued         share of the waiting for prompts of others that passes before a request's first token, the rest between its tokens
    memory_share   share of a board's memory that it takes; reserve_bytes: of these neither weights nor cache
    chunk          most tokens of prompts in a step
    known          whether the constants are those of the named version
    """

    name: Text
    version: Text
    library: Annotated[str, Words(LIBRARIES)]
    queued: Annotated[float, Span(0.0, 1.0)]
    memory_share: Annotated[float, Span(0.1, 1.0)]
    reserve_bytes: Annotated[float, Span(0.0, 1e12, "byte")]
    chunk: Annotated[int, Span(16, 1e6, "token")]
    host: HostTime
    sources: Mapping[str, str]
    known: bool = True

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"


def engine_names() -> tuple[str, ...]:
    """Names of the shipped engines with their versions, sorted."""
    return resource_names("engines", ".toml")


def load_engine(name: str | Engine | None = None) -> Engine:
    """An engine by its name, with or without a version ("vllm-0.12", "vllm"), or a TOML file of one; None: the usual one.

    Of another version, or without one, it has the constants of the latest shipped version with a wider spread.  Raises
    OperatingPointError for an unknown engine, or a file that cannot be used.
    """
    if isinstance(name, Engine):
        return name
    asked = (name or USUAL).strip().lower()
    if name and asked.endswith(".toml"):
        return read_file(Engine, Path(name), "engine", OperatingPointError)
    if asked in engine_names():
        return _shipped(asked)
    own = [one for one in engine_names() if asked == one.rpartition("-")[0] or asked.startswith(one.rpartition("-")[0] + "-")]
    if not own:
        raise OperatingPointError(
            f"unknown engine {name!r:.40}; known: {', '.join(engine_names())}, these names without a version, or a TOML file"
        )
    engine = _shipped(own[-1])
    return replace(engine, host=replace(engine.host, spread=OTHER_VERSION_SPREAD), known=False)


@cache
def _shipped(name: str) -> Engine:
    return read_file(Engine, resource_folder("engines") / f"{name}.toml", "engine", OperatingPointError)
