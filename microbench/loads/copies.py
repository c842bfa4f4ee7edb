"""Copies by the copy engines: no kernel runs, the SMs are idle."""

from typing import ClassVar, Final

from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator
from microbench.kernel import FAMILY, Mode, Module, Pattern, PreparedKernel

COPY_BYTES: Final = 1 << 30
"""Size of one copy: 1 GiB, 20 ms over a 50 GB/s link, so that its launch time is negligible."""


@frozen
class CopyLoad:
    """One copy of `bytes_moved` bytes between "device", "peer" or "host", back to back.  Groups and listings treat copies like kernels."""

    name: str
    origin: str
    target: str
    bytes_moved: int = COPY_BYTES
    family: ClassVar[str] = "copy"
    instruction: ClassVar[str] = "copy engine"
    module: ClassVar[Module] = "none"
    chains: ClassVar[int] = 1
    unroll: ClassVar[int] = 1
    modes: ClassVar[tuple[Mode, ...]] = ("full",)
    patterns: ClassVar[tuple[Pattern, ...]] = ("random",)
    levels: ClassVar[tuple[str, ...]] = ("O3",)

    @property
    def operator(self) -> Operator:
        """The copy with the names of a dataset."""
        return Operator(family=FAMILY, operator=self.name, precision="none", shape=())

    @property
    def link(self) -> str:
        """Link of the data: "host", "peer", or "device" if they stay on the board."""
        return next((end for end in (self.origin, self.target) if end != "device"), "device")

    level = link

    def refusal(self, _: str) -> str:
        """Reason why an architecture cannot run the load: always ""."""
        return ""

    def identity(self) -> tuple[str | int, ...]:
        """Values that identify this load in a campaign."""
        return (self.name, self.instruction, self.bytes_moved)

    told = identity

    def prepared(self, corrupted: str = "") -> PreparedKernel:
        """The copy as a prepared kernel; `corrupted` is the fault in its results."""
        return PreparedKernel(
            operator=self.operator,
            l2_state="warm",
            library=self.instruction,
            kernel_name=self.name,
            working_set_bytes=2 * self.bytes_moved,
            corrupted=corrupted,
        )


COPIES: Final = (
    CopyLoad(name="copy_host_to_device", origin="host", target="device"),
    CopyLoad(name="copy_device_to_host", origin="device", target="host"),
    CopyLoad(name="copy_device_to_device", origin="device", target="device"),
    CopyLoad(name="copy_peer", origin="device", target="peer"),
)
"""All copies."""
