"""Description of a generated kernel: its text, buffers, launch, counted work and expected machine code.

A kernel is data.  Its PTX text is complete and readable; its buffers declare their contents; its work is counted
for one active thread and one turn of its loop, so that totals are products:

    total = work · active threads · iterations

The runner gets the contents of the buffers from `microbench.operands`, passes `arguments` in their order,
launches the kernel, and passes the results to `microbench.operands`.
"""

import hashlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, get_args

from numpy.typing import NDArray

from estimator.vocabulary.frozen import EMPTY
from estimator.vocabulary.reader import read
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator

OPTIMISATION_LEVELS: Final = ("O3", "O0")
"""Levels of the assembler: O3 is the main one, O0 a second point."""

WARP_LANES: Final = 32
"""Threads of a warp on all architectures."""


Pattern = Literal["zero", "constant", "random"]
Mode = Literal["full", "sm_sweep", "lane_sweep", "single", "block_sweep"]
Level = Literal["register", "shared", "l1", "l2", "dram", "constant", "local", "peer", "host"]
Module = Literal["cuda", "sfu", "tensor", "shared", "l2", "dram", "none"]
Buffers = Mapping[str, NDArray[Any]]

MODES: Final[tuple[Mode, ...]] = get_args(Mode)
"""Launch modes (`microbench.loads.launch`)."""

PATTERNS: Final[tuple[Pattern, ...]] = get_args(Pattern)
"""Patterns of operands."""

FAMILY: Final = "instruction"
"""Family of generated kernels and copies in datasets; operators of workloads have other families."""

SCALARS: Final = ("iterations", "active_lanes", "region_bytes", "region_mask")
"""Arguments that are not buffers: 32-bit numbers of the launch."""


@frozen
class Slot:
    """One value of a buffer's record.

    `kind` is u32, s32, u64, f32, f64, f16, f16x2, bf16x2 (two halves in 32 bits), e4m3x4, e5m2x4, u8x4, s8x4, s4x8 or b1x32.
    Random values are uniform in [low, high]; the constant pattern takes the middle; the zero pattern takes 0, or `low` where `never_zero`.
    `odd` sets the lowest bit.  `negates` and `inverts` name an earlier slot whose negative or reciprocal this is.
    """

    name: str
    kind: str
    low: float = 0.0
    high: float = 0.0
    never_zero: bool = False
    odd: bool = False
    negates: str = ""
    inverts: str = ""


@frozen
class Buffer:
    """Memory that a kernel uses.

    A record of `slots` for each thread (`per="thread"`), `records` of them; `per="region"`: as many as fill the
    regions of all blocks; `per="common"`: those of one region that all blocks share; `per="launch"`: exactly `records`.
    With a `chase_stride` it holds u64 addresses instead: entry i of a region holds the address of entry (i + stride), cyclically.
    `written` buffers start as zeros, or with their contents if `filled`, and are read back.  `location` is "device", "peer" (another
    GPU) or "host" (pinned).
    """

    name: str
    slots: tuple[Slot, ...]
    per: Literal["thread", "region", "common", "launch"] = "thread"
    records: int = 1
    written: bool = False
    filled: bool = False
    chase_stride: int = 0
    location: Literal["device", "peer", "host"] = "device"


@frozen
class Work:
    """Work of one active thread in one turn of the loop.

    `operations` counts the executed PTX instructions by name, without loop control.  `bytes_moved` counts the requested bytes by level;
    `transactions` counts 128-byte (shared, l1) or 32-byte (l2, dram) transfers, as each thread's share.
    `flop` counts arithmetic by precision, two for a fused multiply-add.
    """

    operations: Mapping[str, float]
    bytes_moved: Mapping[str, float] = EMPTY
    transactions: Mapping[str, float] = EMPTY
    flop: Mapping[str, float] = EMPTY


@frozen
class Expectation:
    """Expected machine code of the loop body.

    `opcodes` are the names that do the counted work; a prefix up to a dot suffices ("FFMA" covers FFMA.FTZ).  `count` is their
    number in one turn, between `fewest` and `most`.  `companions` may accompany them in any number (they break
    an algebraic identity, or belong to a composite).  `calls` allows a CALL (slow path); `uniform` allows
    opcodes of the uniform datapath beyond loop control; `local` allows LDL and STL; `converges` allows the routines that the assembler
    calls at O0 to reconverge a warp.
    """

    opcodes: tuple[str, ...]
    fewest: int
    most: int
    companions: tuple[str, ...] = ()
    uniform: tuple[str, ...] = ()
    calls: bool = False
    local: bool = False
    converges: bool = False


@frozen
class Launch:
    """One way to run a kernel.

    `active_lanes` of every warp do the work, the others exit at once.  `region_bytes` is the size of the data that each block walks, or
    that all blocks share, a power of two (0: no data).  Blocks of a kernel with a `region_mask` use `regions` of them in turn, a power of
    two (0: each block has its own).
    """

    mode: Mode
    blocks: int
    threads_per_block: int
    iterations: int
    active_lanes: int = WARP_LANES
    region_bytes: int = 0
    regions: int = 0
    pattern: Pattern = "random"
    seed: int = 0

    @property
    def walked_regions(self) -> int:
        """Regions that all blocks together walk."""
        return min(self.blocks, self.regions or self.blocks)

    @property
    def threads(self) -> int:
        """Threads of the launch, idle lanes included."""
        return self.blocks * self.threads_per_block

    @property
    def active_threads(self) -> int:
        """Threads that do the work."""
        whole, rest = divmod(self.threads_per_block, WARP_LANES)
        return self.blocks * (whole * min(self.active_lanes, WARP_LANES) + min(rest, self.active_lanes))


@frozen
class Architecture:
    """A target of the assembler: its PTX ISA, the assemblers that were tried, and the programs that it needs if not the usual ones."""

    name: str
    ptx: str = "8.7"
    ptxas: tuple[str, ...]
    needs: str = ""


@frozen
class Support:
    """Architectures with a feature: from `minimum` on, or those of `only`, without those of `lacking`, which emulate it."""

    feature: str = ""
    minimum: str = "sm_52"
    only: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()

    def refusal(self, architecture: str) -> str:
        """Reason why an architecture lacks the feature; "" if it has it."""
        if self.only and architecture not in self.only:
            return f"{self.feature} is there on {', '.join(self.only)} alone"
        if architecture in self.lacking or compute_capability(architecture) < compute_capability(self.minimum):
            return f"{self.feature} is there from {self.minimum} on" + (f", not on {', '.join(self.lacking)}" if self.lacking else "")
        return ""


_TABLE: Final = tomllib.loads(Path(__file__).with_name("architectures.toml").read_text(encoding="utf-8"))

ARCHITECTURES: Final[Mapping[str, Architecture]] = {one["name"]: read(Architecture, one) for one in _TABLE["architecture"]}
"""Targets that the catalogue is compiled for, by name, oldest first (`architectures.toml`)."""

FEATURES: Final[Mapping[str, Support]] = {name: read(Support, {"feature": name, **one}) for name, one in _TABLE["features"].items()}
"""Features that not all targets have, by name."""


@frozen
class Kernel:
    """One generated kernel.

    `name` is unique in the catalogue and the name of its PTX entry.  `family` groups variants (unroll factors, strides);
    `instruction` is the priced PTX instruction or access, `module` the module that does the work, `level`
    the memory level of its loop.  `text` is the entry, `declarations` its text at module scope.
    `arguments` names buffers, passed as addresses, and SCALARS.  Results are exact to `tolerance`, relative to the largest number
    of the slot; 0 means bit for bit.  `block_threads` are the threads of a block, which cannot change if `fixed`.
    """

    name: str
    family: str
    instruction: str
    module: Module
    level: Level
    text: str
    declarations: str = ""
    buffers: tuple[Buffer, ...]
    arguments: tuple[str, ...]
    work: Work
    expectation: Expectation
    tolerance: float = 0.0
    support: Support = Support()
    modes: tuple[Mode, ...] = ("full", "sm_sweep", "lane_sweep", "single")
    patterns: tuple[Pattern, ...] = ("zero", "constant", "random")
    chains: int = 1
    unroll: int = 1
    block_threads: int = 256
    fixed: bool = True
    min_region_bytes: int = 0
    residence: tuple[Literal["l1", "l2"], float] | None = None
    """The cache that sets a launch's footprint, and the share (to stay in it) or multiple (to miss it) of its size."""
    levels: ClassVar[tuple[str, ...]] = OPTIMISATION_LEVELS

    def refusal(self, architecture: str) -> str:
        """Reason why an architecture cannot run it, without its name; "" if it can."""
        reason = self.support.refusal(architecture)
        return f"cannot run on {architecture}: {reason}" if reason else ""

    def digest(self) -> str:
        """SHA-256 of the text, as hexadecimal digits."""
        return hashlib.sha256(f"{self.declarations}\n{self.text}".encode()).hexdigest()

    def check_launch(self, pattern: Pattern = "random") -> Launch:
        """The small launch for the verification of results: two blocks, three turns."""
        return Launch(
            mode="full",
            blocks=2,
            threads_per_block=self.block_threads if self.fixed else 128,
            iterations=3,  # turns of the loop: the first, one in the middle, the last
            region_bytes=2 * self.min_region_bytes,
            pattern=pattern,
            seed=1,
        )


def compute_capability(architecture: str) -> int:
    """The number of an architecture name: 90 for sm_90 and sm_90a."""
    return int(architecture.removeprefix("sm_").rstrip("af"))


@frozen
class PreparedKernel:
    """One launch, ready to run: the library's choice for an operator.

    `grid` and `block` are in CUDA's x, y, z order.  `tile_m`, `tile_n`, `tile_k`, `stages` are 0 if the
    kernel has no such tile; `split_k` is 1 without splitting, 0 if unknown.  `transpose` is the layout of the two inputs
    (`microbench.layouts`, also for the natural one; "" without a meaning).  `buffer_sets` copies of the operands,
    `working_set_bytes` each, are used in turn: one for l2_state "warm", enough to displace the L2 between two uses for "cold".
    If no trace shows the kernel, `kernel_name` is "", sizes are 0, and `untraced` is the reason.  `corrupted` is the fault in
    the results of a trial launch ("" if they are right or were not compared).
    """

    operator: Operator
    l2_state: str
    library: str
    kernel_name: str = ""
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    registers_per_thread: int = 0
    shared_bytes_per_block: int = 0
    blocks_per_sm: int = 0
    tile_m: int = 0
    tile_n: int = 0
    tile_k: int = 0
    stages: int = 0
    split_k: int = 0
    transpose: str = ""
    working_set_bytes: int
    buffer_sets: int = 1
    untraced: str = ""
    corrupted: str = ""
