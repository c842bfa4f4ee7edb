"""Serving engines as data: what their hosts cost, how they schedule, and which share of the memory they take (`configs/engines`)."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from estimator.model.tier_records import Share
from estimator.uncertainty.validity import GIB
from estimator.vocabulary.errors import OperatingPointError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.reader import Span, Text, Words, read_file
from estimator.vocabulary.resources import resource_folder, resource_names
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import LIBRARIES

OTHER_VERSION_SHARE: Final = 0.5
"""Share of a host's time that counts where the engine's version is not that of the fit, or not known [1]: the middle between all and none,
since later versions hide more of it behind the boards.  The 90 % interval reaches from none to all.  gpt-oss-120b under TensorRT-LLM
1.2 errs by 13 to 21 % with half of the constants of 1.0, by 3 to 18 % with none; Llama-3.1-8B under 1.0 on 8 H100 by 20 % with none."""

USUAL: Final = "vllm"
"""The engine of an answer for which none is named."""

Seconds = Annotated[float, Span(0.0, 10.0, "s")]
Chunk = Annotated[int, Span(16, 1e6, "token")]


@frozen
class HostTime:
    """Time of the host in which the boards wait: of a step, of each sequence in it, of each request, and of each GPU but one in a step.

    overlapped_…   of a step, of each sequence in it, and of each layer in a step with prompts, which is launched without a CUDA graph,
                   while the boards compute: they wait where it takes longer
    spread         relative half width of the 90 % interval of all
    """

    step_s: Seconds
    sequence_s: Seconds
    request_s: Seconds
    rank_s: Seconds = 0.0
    overlapped_step_s: Seconds = 0.0
    overlapped_sequence_s: Seconds = 0.0
    overlapped_layer_s: Seconds = 0.0
    spread: Share


@frozen
class BoardChunk:
    """The chunk of an engine on boards with less memory, or with this in their name ("": none)."""

    below_gib: Annotated[float, Span(0.0, 1e6, "GiB")]
    chunk: Chunk
    gpus: str = ""


@frozen
class Engine:
    """A serving engine of one version.

    library        whose kernels it launches
    queued         share of the waiting for prompts of others that passes before a request's first token, the rest between its tokens
    memory_share   share of a board's memory that it takes; reserve_bytes: of these neither weights nor cache
    chunk          most tokens of prompts in a step, by default; chunks: on other boards, the first that holds
    mixes          whether prompts share steps with running sequences; else these wait (mixed, SGLang's runs of Qwen3-32B on 2 H100 would
                   err by 6.4 instead of 2.6 %, energy per token under vLLM 0.5 on H100 by 9.0 instead of 7.6 %)
    known          whether the constants are those of the named version
    """

    name: Text
    version: Text
    library: Annotated[str, Words(LIBRARIES)]
    queued: Share
    memory_share: Annotated[float, Span(0.1, 1.0)]
    reserve_bytes: Annotated[float, Span(0.0, 1e12, "byte")]
    chunk: Chunk
    host: HostTime
    sources: Mapping[str, str]
    chunks: tuple[BoardChunk, ...] = ()
    mixes: bool = True
    known: bool = True

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"

    def on(self, gpu: GpuSpec) -> "Engine":
        """The engine with its chunk on a board."""
        found = (one.chunk for one in self.chunks if gpu.dram_bytes < one.below_gib * GIB or (one.gpus and one.gpus in gpu.name))
        return replace(self, chunk=next(found, self.chunk))


@frozen
class Waiting:
    """Power of a board that waits for its host while it serves (`configs/serving/waiting.toml`).

    share    of the way from power at rest to the power limit [1]; spread: relative half width of the 90 % interval of the power
    """

    share: Share
    spread: Share
    source: Text


@cache
def waiting_power(architecture: str) -> Waiting:
    """The constants of GPUs of an architecture ("hopper"), else the usual ones."""
    path = resource_folder("serving") / "waiting.toml"
    found = read_file(Mapping[str, Waiting], path, "powers", OperatingPointError)  # type: ignore[type-abstract]
    return found.get(architecture, found["usual"])


def engine_names() -> tuple[str, ...]:
    """Names of the shipped engines with their versions, sorted by these."""
    return tuple(sorted(resource_names("engines"), key=lambda name: (name.rpartition("-")[0], _version(name))))


def load_engine(name: str | Path | Engine | None = None) -> Engine:
    """An engine by its name, with or without a version ("vllm-0.12", "vllm"), or a TOML file of one; None: the usual one.

    Of another version it has OTHER_VERSION_SHARE of the host times of the nearest shipped version, without one of the middle one.  Raises
    OperatingPointError for an unknown engine, or a file that cannot be used.
    """
    if isinstance(name, Engine):
        return name
    asked = str(name or USUAL).strip().lower()
    if name and asked.endswith(".toml"):
        return read_file(Engine, Path(name), "engine", OperatingPointError)
    if asked in engine_names():
        return _shipped(asked)
    own = [one for one in engine_names() if f"{asked}-".startswith(f"{one.rpartition('-')[0]}-")]
    if not own:
        raise OperatingPointError(
            f"unknown engine {str(name)!r:.40}; known: {', '.join(engine_names())}, these names without a version, or a TOML file"
        )
    version = _version(asked)
    engine = _shipped(min(own, key=lambda one: abs(_version(one) - version)) if version else own[len(own) // 2])
    less = {one.name: OTHER_VERSION_SHARE * getattr(engine.host, one.name) for one in fields(HostTime)}
    return replace(engine, host=HostTime(**less | {"spread": 1.0}), known=False)


def _version(name: str) -> float:
    """The version in a name as one number: 0.012 for 0.12; 0 without one."""
    return sum(int(part) / 1000.0**place for place, part in enumerate(re.findall(r"\d+", name.rpartition("-")[2])))


@cache
def _shipped(name: str) -> Engine:
    return read_file(Engine, resource_folder("engines") / f"{name}.toml", "engine", OperatingPointError)
