"""The catalogue for people: what each generated kernel and each copy is, where it runs and how it may be launched."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from estimator.vocabulary.specifications import near_match
from microbench.errors import UnsupportedError
from microbench.families.catalogue import EVERY_KERNEL, KERNELS, SWEEP
from microbench.kernel import ARCHITECTURES, HostLoad, Kernel
from microbench.loads.generated import COPIES

CATALOGUE: Final = "catalogue"
VARIANT: Final = "variant"
COPY: Final = "copy"
KINDS: Final = {CATALOGUE: "of the catalogue", VARIANT: "variants in chains and unrolling (for the regression)", COPY: "copies"}
"""What a listed name is: a kernel with an energy of its own to tell, the same with other chains or unrolling (`SWEEP`), or a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedKernel:
    """A name that a campaign can give; `kind` is one of `KINDS`.

    `instruction` is the PTX instruction or access that it prices, `level` the memory level, or the link, that its data come from.
    `architectures` run it; `modes`, `patterns` and `levels` are what a campaign's keys `modes`, `pattern` and `level` may say.
    """

    name: str
    kind: str
    family: str
    instruction: str
    module: str
    level: str
    chains: int
    unroll: int
    architectures: tuple[str, ...]
    modes: tuple[str, ...]
    patterns: tuple[str, ...]
    levels: tuple[str, ...]

    @property
    def runs_on(self) -> str:
        """The architectures in few words."""
        lacking = [name for name in ARCHITECTURES if name not in self.architectures]
        if not lacking:
            return "all"
        return f"all but {', '.join(lacking)}" if len(lacking) < len(self.architectures) else ", ".join(self.architectures)


def listed_kernels(families: Sequence[str] = (), architecture: str = "") -> tuple[list[ListedKernel], list[str]]:
    """The kernels of some families (wildcards allowed; none: all) that an architecture runs ("": any), and why it does not run others.

    Raises UnsupportedError for a family that the catalogue does not have.
    """
    every = [_listed(kind, one) for kind, entries in ((CATALOGUE, KERNELS), (VARIANT, SWEEP), (COPY, COPIES)) for one in entries]
    known = dict.fromkeys(kernel.family for kernel in every)
    for pattern in families:
        if not any(fnmatchcase(family, pattern) for family in known):
            raise UnsupportedError(f"no family is named {pattern!r}{near_match(pattern.lower(), known)}; without a name all are listed")
    asked = [one for one in every if not families or any(fnmatchcase(one.family, pattern) for pattern in families)]
    if not architecture:
        return asked, []
    names = {one.name for one in asked}
    refusals = [kernel.refusal(architecture) for kernel in EVERY_KERNEL if kernel.name in names]
    return [one for one in asked if architecture in one.architectures], [refusal for refusal in refusals if refusal]


def counted_kinds(kernels: Sequence[ListedKernel]) -> str:
    """How many names and families a listing has, and what they are, in one line."""
    numbers = {kind: sum(one.kind == kind for one in kernels) for kind in KINDS}
    parts = ", ".join(f"{number} {KINDS[kind]}" for kind, number in numbers.items() if number)
    return f"{len(kernels)} names in {len({one.family for one in kernels})} families: {parts}"


def _listed(kind: str, one: Kernel | HostLoad) -> ListedKernel:
    names = ("name", "family", "instruction", "module", "level", "chains", "unroll", "modes", "patterns", "levels")
    architectures = tuple(name for name in ARCHITECTURES if not one.refusal(name))
    return ListedKernel(kind=kind, architectures=architectures, **{name: getattr(one, name) for name in names})
