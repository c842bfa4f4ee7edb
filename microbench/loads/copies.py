"""Copies by the copy engines, ready for measurement: no kernel runs, the SMs are idle."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from estimator.vocabulary.workload import Operator
from microbench.kernel import HostLoad, PreparedKernel
from microbench.loads.generated import COPIES, FAMILY, LoadGroup, lacks, named

COPY_ENGINE: Final = HostLoad.instruction
"""Name of a copy in place of a kernel's PTX instruction."""

NOT_ON_SMS: Final = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLoad:
    """One copy of `host.bytes_moved` bytes from `host.origin` to `host.target`, back to back."""

    host: HostLoad

    @property
    def operator(self) -> Operator:
        """The copy with the names of a dataset."""
        return Operator(family=FAMILY, operator=self.host.name, precision="none", shape=())

    @property
    def link(self) -> str:
        """Link of the data: "host", "peer", or "device" if they stay on the board."""
        return self.host.level

    def identity(self) -> tuple[str | int, ...]:
        """Values that identify this load in a campaign."""
        return (self.host.name, COPY_ENGINE, self.host.bytes_moved)

    def told(self) -> tuple[str | int, ...]:
        """Values that are equal for the same load."""
        return self.identity()


def copy_loads(groups: Sequence[LoadGroup]) -> tuple[CopyLoad, ...]:
    """The copies that groups name among their kernels and that run as requested, each once, in the catalogue's order."""
    wanted = {copy.name for group in groups for copy in named(group, COPIES) if not lacks(copy, group)}
    return tuple(CopyLoad(host=copy) for copy in COPIES if copy.name in wanted)


def prepared_copy(load: CopyLoad, corrupted: str = "") -> PreparedKernel:
    """A copy as a prepared kernel."""
    return PreparedKernel(
        operator=load.operator,
        l2_state="warm",
        library=COPY_ENGINE,
        kernel_name=load.host.name,
        grid=NOT_ON_SMS,
        block=NOT_ON_SMS,
        registers_per_thread=0,
        shared_bytes_per_block=0,
        blocks_per_sm=0,
        working_set_bytes=2 * load.host.bytes_moved,
        corrupted=corrupted,
    )
