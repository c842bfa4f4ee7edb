"""Generated kernels: the groups of a campaign that name them, and each kernel ready for measurement.

It is compiled and inspected, with a launch for each mode and counts of its work; a group says why some of its kernels do not run as
requested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Final, cast

from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.reader import LEAST_ONE, FaultError, Span, Words
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator
from microbench.errors import LaunchError, UnsupportedError
from microbench.families.catalogue import EVERY_KERNEL
from microbench.kernel import (
    ARCHITECTURES,
    FAMILY,
    MODES,
    OPTIMISATION_LEVELS,
    PATTERNS,
    WARP_LANES,
    Kernel,
    Launch,
    Pattern,
    PreparedKernel,
)
from microbench.loads.copies import COPIES, CopyLoad
from microbench.loads.launch import MOST_ITERATIONS, SM_SHARES, plan_launches
from microbench.operands import buffer_bytes
from microbench.sizing import SUB_PARTITIONS, resident_blocks
from microbench.toolchain.compile import CompiledModule, Toolchain, compile_kernels, find_toolchain
from microbench.toolchain.inspect import InspectedEntry, body_complaint

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
            raise FaultError(f"asks for what none has: {self.named()[0].name}: {reasons[0]}")

    def named(self) -> list[Named]:
        """The kernels and copies of the group, in the catalogue's order."""
        return [one for one in EVERY if _fits(one.name, self.kernels) and not _fits(one.name, self.without)]

    def lacks(self, one: Named) -> str:
        """Reason why a kernel or copy supports no mode, not the pattern or not the level of the group; "" if it runs."""
        asked = (("mode", self.modes, one.modes), ("pattern", (self.pattern,), one.patterns), ("level", (self.level,), one.levels))
        for key, wanted, there in asked:
            if not set(wanted) & set(there):
                return f"no {key} {' or '.join(wanted)}; there is {', '.join(there)}"
        return ""


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def few(names: Sequence[str]) -> str:
    """The first three names as text."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


LAUNCH_S: Final = 4e-3
"""Target time of one launch [s]: a thousand times the host's launch cost, so that gaps are negligible."""

SWEPT_LAUNCH_S: Final = 1e-3
"""Target time of a launch of the smallest grid in a sweep over blocks [s]; the largest takes several hundred times as long."""

NANOSLEEP_S: Final = 1e-3
"""Longest wait of the instruction [s] (PTX ISA, nanosleep)."""

LINE_BYTES: Final = 128
SECTOR_BYTES: Final = 32
"""Units of transfer: a line of L1, a sector of L2 and DRAM (Nsight Compute documentation)."""

LEVELS: Final = ("shared", "l1", "l2", "dram")
"""Levels whose transactions are counted: 128-byte ones of shared memory and L1, 32-byte ones of L2 and DRAM."""

LINKS: Final = ("host", "peer")
"""Levels beyond the board."""


@frozen
class GeneratedLoad:
    """A generated kernel in one launch: the inspected machine code, and the work of a launch.

    `blocks_per_sm` fit on an SM at once.  `module` holds every kernel of its campaign at one level.
    """

    kernel: Kernel
    launch: Launch
    module: CompiledModule
    blocks_per_sm: int

    @property
    def entry(self) -> InspectedEntry:
        """Contents and resources of the machine code."""
        return self.module.entries[self.kernel.name]

    @property
    def operator(self) -> Operator:
        """The load with the names of a dataset; its number format is the last word of the PTX instruction."""
        *_, last = self.kernel.instruction.split(".")
        precision = last if last[-1:].isdecimal() or "x" in last else "none"
        return Operator(family=FAMILY, operator=self.kernel.name, precision=precision, shape=())

    @property
    def active_warps(self) -> int:
        """Warps of a launch; each has at least one active thread."""
        return self.launch.blocks * -(-self.launch.threads_per_block // WARP_LANES)

    def sized(self, gpu: GpuSpec, launch_s: float = LAUNCH_S) -> "GeneratedLoad":
        """The load with the turns of its loop that last `launch_s` if every scheduler issues one instruction a clock.

        With slower instructions the launch is longer by the same factor.
        """
        work, launch, body = self.kernel.work, self.launch, self.entry.body
        warps = -(-launch.threads_per_block // WARP_LANES) * -(-launch.blocks // gpu.num_sms)
        issue_s = sum(body.values()) * -(-warps // SUB_PARTITIONS) / (gpu.sm_clock_limit_mhz * 1e6)
        dram_s = work.transactions.get("dram", 0.0) * SECTOR_BYTES * launch.active_threads / gpu.dram_bytes_per_s
        # Assumed rate of a link: PCI Express 4.0 with 16 lanes, less its overhead [byte/s].
        linked_s = sum(work.bytes_moved.get(link, 0.0) for link in LINKS) * launch.active_threads / 25e9
        turn_s = max(issue_s, dram_s, linked_s) + NANOSLEEP_S * body.get("NANOSLEEP", 0)
        turns = min(MOST_ITERATIONS, max(1, round(launch_s / max(turn_s, launch_s / MOST_ITERATIONS))))
        return replace(self, launch=replace(launch, iterations=turns))

    def identity(self) -> tuple[str | int, ...]:
        """Values that identify this load in a campaign."""
        own, launch = (self.kernel.name, self.module.level, self.module.architecture), self.launch
        return (*own, launch.mode, launch.pattern, launch.active_lanes, launch.blocks, launch.threads_per_block)

    def told(self) -> tuple[str | int, ...]:
        """Its identity, the digest of its machine code and the turns of its loop; equal values mean the same load."""
        return (*self.identity(), self.module.digest, self.launch.iterations)

    def transactions(self) -> FrozenMapping[float]:
        """Transactions of one launch by level, by construction.

        Data of a level pass all levels above it on their way to the registers: a sector from DRAM is also a sector from L2, and
        its bytes cross L1's port in lines of 128.
        """
        work = self.kernel.work
        times = self.launch.active_threads * self.launch.iterations
        counts = dict.fromkeys(LEVELS, 0.0) | {level: count * times for level, count in work.transactions.items() if level in LEVELS}
        counts["l2"] += counts["dram"]
        moved = work.bytes_moved.get("l2", 0.0) + work.bytes_moved.get("dram", 0.0)
        counts["l1"] += moved * times / LINE_BYTES
        return FrozenMapping(counts)

    @property
    def link(self) -> str:
        """Link that its data cross beyond the board: "host", "peer", or ""."""
        return self.kernel.level if self.kernel.level in LINKS else ""

    def link_bytes(self) -> float:
        """Bytes that cross the link in one launch, by construction [byte]."""
        return self.kernel.work.bytes_moved.get(self.link, 0.0) * self.launch.active_threads * self.launch.iterations

    def prepared(self, corrupted: str = "") -> PreparedKernel:
        """The load as a prepared kernel; `corrupted` is the fault in its results."""
        return PreparedKernel(
            operator=self.operator,
            l2_state="warm",
            library="generated",
            kernel_name=self.kernel.name,
            grid=(self.launch.blocks, 1, 1),
            block=(self.launch.threads_per_block, 1, 1),
            registers_per_thread=self.entry.registers,
            shared_bytes_per_block=self.entry.shared_bytes,
            blocks_per_sm=self.blocks_per_sm,
            working_set_bytes=buffer_bytes(self.kernel, self.launch),
            corrupted=corrupted,
        )


Load = GeneratedLoad | CopyLoad


def architecture_of(gpu: GpuSpec) -> str:
    """The assembler's target for a GPU.  Raises UnsupportedError for a GPU without a target in the catalogue."""
    name = f"sm_{gpu.compute_capability.replace('.', '')}"
    name = "sm_90a" if name == "sm_90" else name  # the target with Hopper's full instruction set
    if name not in ARCHITECTURES:
        raise UnsupportedError(f"{gpu.name} is {name}; generated kernels are there for {', '.join(ARCHITECTURES)}")
    return name


def generated_loads(
    groups: Sequence[LoadGroup], gpu: GpuSpec, toolchain: Toolchain | None = None, seed: int = 0
) -> tuple[tuple[Load, ...], dict[str, int]]:
    """The loads of all groups, each once, copies last, and the reasons why others cannot run here, with counts.

    Kernels whose machine code differs from their declaration are not measured; on a GPU without a target or its programs no kernel is.
    If `toolchain` is None, it is searched for when there is something to assemble.  Raises CompileError if the assembler is missing or
    fails.
    """
    chosen = [group.named() for group in groups]
    architecture = ""
    lacking: dict[str, dict[str, None]] = {}
    modules: dict[str, CompiledModule] = {}
    try:
        architecture = architecture_of(gpu)
        modules = _assembled(groups, chosen, architecture, toolchain)
    except UnsupportedError as error:
        lacking[str(error)] = dict.fromkeys(one.name for named in chosen for one in named if isinstance(one, Kernel))
        chosen = [[one for one in named if isinstance(one, CopyLoad)] for named in chosen]
    loads: dict[tuple[str | int, ...], Load] = {}
    for group, named in zip(groups, chosen, strict=True):
        for one in named:
            reason = one.refusal(architecture) or _complaint(one, modules, group.level) or group.lacks(one)
            partly = [
                f"no launch mode {mode} (`collect kernels` lists those of each); launched in the others"
                for mode in group.modes
                if mode not in one.modes
            ]
            for why in [reason] if reason else partly:
                lacking.setdefault(why, {})[one.name] = None
            if reason:
                continue
            for load in [one] if isinstance(one, CopyLoad) else _launched(one, group, gpu, modules[group.level], seed, lacking):
                loads.setdefault(load.identity(), load)
    skipped = {f"{few([*names])}: {reason}": len(names) for reason, names in lacking.items() if names}
    return tuple(sorted(loads.values(), key=lambda load: isinstance(load, CopyLoad))), skipped


def _assembled(
    groups: Sequence[LoadGroup], chosen: Sequence[Sequence[Named]], architecture: str, toolchain: Toolchain | None
) -> dict[str, CompiledModule]:
    """One module for each requested optimisation level with kernels on the architecture."""
    modules = {}
    for level in dict.fromkeys(group.level for group in groups):
        wanted = {one.name for group, named in zip(groups, chosen, strict=True) if group.level == level for one in named}
        if kernels := [kernel for kernel in EVERY_KERNEL if kernel.name in wanted and not kernel.refusal(architecture)]:
            toolchain = toolchain or find_toolchain()
            modules[level] = compile_kernels(kernels, architecture, level, toolchain)
    return modules


def _complaint(one: Named, modules: Mapping[str, CompiledModule], level: str) -> str:
    """The difference of a kernel's machine code from its declaration; "" without one."""
    reason = isinstance(one, Kernel) and body_complaint(one.expectation, modules[level].entries[one.name], level)
    return f"at {level}: {reason}" if reason else ""


def _launched(
    kernel: Kernel, group: LoadGroup, gpu: GpuSpec, module: CompiledModule, seed: int, lacking: dict[str, dict[str, None]]
) -> list[GeneratedLoad]:
    """The loads of a kernel: one for each launch of each supported mode."""
    loads = []
    for mode in (mode for mode in kernel.modes if mode in group.modes):
        try:
            entry, pattern = module.entries[kernel.name], cast(Pattern, group.pattern)
            launches = plan_launches(kernel, gpu, entry, mode, pattern=pattern, seed=seed, sm_shares=group.sm_shares)
        except LaunchError as error:
            lacking.setdefault(str(error), {})[kernel.name] = None
            continue
        threads = launches[0].threads_per_block
        resident = resident_blocks(gpu, threads, entry.registers, entry.shared_bytes)
        planned = [GeneratedLoad(kernel=kernel, launch=launch, module=module, blocks_per_sm=resident) for launch in launches]
        if mode == "block_sweep":  # the grids differ in nothing else: all have the turns of the smallest
            turns = planned[0].sized(gpu, SWEPT_LAUNCH_S).launch.iterations
            loads += [replace(load, launch=replace(load.launch, iterations=turns)) for load in planned]
        else:
            loads += [load.sized(gpu) for load in planned]
    return loads
