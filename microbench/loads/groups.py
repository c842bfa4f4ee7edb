"""Groups of a campaign: the kernels and copies that they name, and the reasons why some do not run as requested."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final

from estimator.vocabulary.reader import LEAST_ONE, FaultError, Span, Words
from estimator.vocabulary.values import frozen
from microbench.families.catalogue import EVERY_KERNEL
from microbench.kernel import MODES, OPTIMISATION_LEVELS, PATTERNS, Kernel
from microbench.loads.copies import COPIES, CopyLoad
from microbench.loads.launch import SM_SHARES

Named = Kernel | CopyLoad
EVERY: Final[tuple[Named, ...]] = (*EVERY_KERNEL, *COPIES)


@frozen
class LoadGroup:
    """Kernels to measure, and their launch modes.

    `kernels` are names of the catalogue with wildcards (`ffma_*`), `without` the names to leave out.  Each kernel runs in all of
    `modes` that it supports; `sm_shares` are the shares of the SMs in a sweep over them, 0 a single one.
    Copies by the copy engines have names like kernels.
    """

    kernels: Annotated[tuple[str, ...], LEAST_ONE]
    without: tuple[str, ...] = ()
    modes: Annotated[tuple[Annotated[str, Words(MODES)], ...], LEAST_ONE] = ("full",)
    sm_shares: Annotated[tuple[Annotated[float, Span(0, 1)], ...], LEAST_ONE] = SM_SHARES
    pattern: Annotated[str, Words(PATTERNS)] = "random"
    level: Annotated[str, Words(OPTIMISATION_LEVELS)] = "O3"

    def __post_init__(self) -> None:
        """Raises FaultError for unknown names, and if no kernel runs as requested."""
        for key, patterns in (("kernels", self.kernels), ("without", self.without)):
            for pattern in patterns:
                if not any(fnmatchcase(one.name, pattern) for one in EVERY):
                    raise FaultError(f"has no generated kernel {pattern!r}; `collect kernels` lists them, 'ffma*' takes a family", key)
        reasons = [self.lacks(one) for one in self.named()]
        if not reasons:
            raise FaultError(f"= {list(self.without)!r} leaves none of the kernels", "without")
        if all(reasons):
            raise FaultError(f"asks for what none has: {reasons[0]}")

    def named(self) -> list[Named]:
        """The kernels and copies of the group, in the catalogue's order."""
        return [one for one in EVERY if _fits(one.name, self.kernels) and not _fits(one.name, self.without)]

    def lacks(self, one: Named) -> str:
        """Reason why a kernel or copy supports no mode, not the pattern or not the level of the group; "" if it runs."""
        asked = (("mode", self.modes, one.modes), ("pattern", (self.pattern,), one.patterns), ("level", (self.level,), one.levels))
        for key, wanted, there in asked:
            if not set(wanted) & set(there):
                return f"{one.name} has no {key} {' or '.join(wanted)}; it has {', '.join(there)}"
        return ""

    def modes_left_out(self, running: Sequence[Named]) -> dict[str, int]:
        """Unsupported modes of kernels that run in another mode of the group, with the names and counts."""
        names = {mode: [one.name for one in running if mode not in one.modes] for mode in self.modes}
        why = "(`collect kernels` lists those of each); launched in the others"
        return {f"{few(lacking)}: no launch mode {mode} {why}": len(lacking) for mode, lacking in names.items() if lacking}


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def few(names: Sequence[str]) -> str:
    """The first three names as text."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
