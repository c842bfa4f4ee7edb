"""Groups of a campaign: the kernels and copies that they name, and the reasons why some do not run as requested."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from microbench.errors import UnsupportedError
from microbench.families.catalogue import EVERY_KERNEL
from microbench.kernel import Kernel
from microbench.loads.copies import COPIES, CopyLoad

Named = Kernel | CopyLoad
EVERY: Final[tuple[Named, ...]] = (*EVERY_KERNEL, *COPIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGroup:
    """Kernels to measure, and their launch modes.

    `kernels` are names of the catalogue with wildcards (`ffma_*`), `without` the names to leave out.  Each kernel runs in all of
    `modes` that it supports.  Copies by the copy engines have names like kernels.
    """

    kernels: tuple[str, ...]
    without: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("full",)
    pattern: str = "random"
    level: str = "O3"

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


def check_group(group: LoadGroup, path: str) -> None:
    """Raise UnsupportedError for unknown names, and if no kernel of a group runs as requested; `path` is the group's."""
    for key, patterns in (("kernels", group.kernels), ("without", group.without)):
        for pattern in patterns:
            if not any(fnmatchcase(one.name, pattern) for one in EVERY):
                raise UnsupportedError(
                    f"{path}.{key}: no generated kernel is named {pattern!r}; `collect kernels` lists them, 'ffma*' takes a family"
                )
    reasons = [group.lacks(one) for one in group.named()]
    if not reasons:
        raise UnsupportedError(f"{path}.without = {list(group.without)!r} leaves none of the kernels that {path}.kernels names")
    if all(reasons):
        raise UnsupportedError(f"{path}: nothing runs as it asks; {reasons[0]}")


def copy_loads(groups: Sequence[LoadGroup]) -> tuple[CopyLoad, ...]:
    """The copies that groups name among their kernels and that run as requested, each once, in the catalogue's order."""
    wanted = {one.name for group in groups for one in group.named() if not group.lacks(one)}
    return tuple(copy for copy in COPIES if copy.name in wanted)
