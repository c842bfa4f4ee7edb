"""Generated kernels ready for measurement: compiled, inspected, with a launch for each mode and counts of their work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeVar, cast

from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.workload import Operator
from microbench.errors import InspectionError, LaunchError, UnsupportedError
from microbench.families.catalogue import EVERY_KERNEL, HOST_LOADS
from microbench.kernel import ARCHITECTURES, WARP_LANES, HostLoad, Kernel, Launch, Mode, Pattern, PreparedKernel
from microbench.loads.launch import MOST_ITERATIONS, plan_launches
from microbench.operands import buffer_bytes
from microbench.sizing import SUB_PARTITIONS, resident_blocks
from microbench.toolchain.compile import CompiledModule, Toolchain, compile_kernels, find_toolchain
from microbench.toolchain.inspect import InspectedEntry, check_body

FAMILY: Final = "instruction"
"""Family of generated kernels in datasets; operators of workloads have other families."""

MODES: Final[tuple[Mode, ...]] = ("full", "sm_sweep", "lane_sweep", "single", "block_sweep")
"""Launch modes (`microbench.loads.launch`)."""

PATTERNS: Final[tuple[Pattern, ...]] = ("zero", "constant", "random")
"""Patterns of operands."""

LAUNCH_S: Final = 4e-3
"""Target time of one launch [s]: a thousand times the host's launch cost, so that gaps are negligible."""

SWEPT_LAUNCH_S: Final = 1e-3
"""Target time of a launch of the smallest grid in a sweep over blocks [s]; the largest takes several hundred times as long."""

SLEEPS_S: Final[dict[str, float]] = {"NANOSLEEP": 1e-3}
"""Instructions that wait, with their longest wait [s] (PTX ISA, nanosleep)."""

LINE_BYTES: Final = 128
SECTOR_BYTES: Final = 32
"""Units of transfer: a line of L1, a sector of L2 and DRAM (Nsight Compute documentation)."""

LEVELS: Final = ("shared", "l1", "l2", "dram")
"""Levels whose transactions are counted: 128-byte ones of shared memory and L1, 32-byte ones of L2 and DRAM."""

LINKS: Final = ("host", "peer")
"""Levels beyond the board."""

ARCHITECTURE_FEATURES: Final[dict[str, str]] = {"sm_90": "sm_90a"}
"""Architectures whose full instruction set has another target name."""

FEW: Final = 3
"""Most names in a message."""

COPIES: Final = tuple(load for load in HOST_LOADS if load.bytes_moved)
"""Loads of the copy engines that move something."""

Named = Kernel | HostLoad
N = TypeVar("N", Kernel, HostLoad)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedLoad:
    """A generated kernel in one launch: the inspected machine code, and the work of a launch.

    `blocks_per_sm` fit on an SM at once.  `cubin` holds every kernel of its campaign; `cubin_sha256` is its digest.
    """

    kernel: Kernel
    launch: Launch
    entry: InspectedEntry
    blocks_per_sm: int
    architecture: str
    level: str
    compiler: str
    cubin_sha256: str
    cubin: bytes = field(repr=False)

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

    def identity(self) -> tuple[str | int, ...]:
        """Values that identify this load in a campaign."""
        launch = self.launch
        lanes, blocks, threads = launch.active_lanes, launch.blocks, launch.threads_per_block
        return (self.kernel.name, self.level, self.architecture, launch.mode, launch.pattern, lanes, blocks, threads)

    def told(self) -> tuple[str | int, ...]:
        """Its identity, the digest of its machine code and the turns of its loop; equal values mean the same load."""
        return (*self.identity(), self.cubin_sha256, self.launch.iterations)

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


def prepared_load(load: GeneratedLoad, corrupted: str = "") -> PreparedKernel:
    """A load as a prepared kernel; `corrupted` is the fault in its results."""
    launch, entry = load.launch, load.entry
    return PreparedKernel(
        operator=load.operator,
        l2_state="warm",
        library="generated",
        kernel_name=load.kernel.name,
        grid=launch.grid,
        block=launch.block,
        registers_per_thread=entry.registers,
        shared_bytes_per_block=entry.shared_bytes,
        blocks_per_sm=load.blocks_per_sm,
        working_set_bytes=buffer_bytes(load.kernel, launch),
        corrupted=corrupted,
    )


def architecture_of(gpu: GpuSpec) -> str:
    """The assembler's target for a GPU.  Raises UnsupportedError for a GPU without a target in the catalogue."""
    name = f"sm_{gpu.compute_capability.replace('.', '')}"
    name = ARCHITECTURE_FEATURES.get(name, name)
    if name not in ARCHITECTURES:
        raise UnsupportedError(f"{gpu.name} is {name}; generated kernels are there for {', '.join(ARCHITECTURES)}")
    return name


def generated_loads(
    groups: Sequence[LoadGroup],
    gpu: GpuSpec,
    toolchain: Toolchain | None = None,
    seed: int = 0,
    cache: Path | None = None,
    remark: Callable[[str], None] = lambda text: None,
) -> tuple[tuple[GeneratedLoad, ...], dict[str, int]]:
    """The loads of all groups, each once, and the reasons why others cannot run here, with counts.

    Kernels whose machine code differs from their declaration are not measured; on a GPU without a target no kernel is.
    If `toolchain` is None, it is searched for when there is something to assemble.  `cache` is a folder that keeps machine code between
    calls (`compile_kernels`); `remark` is called once if it is unusable.  For copies by the copy engines only the reasons are
    returned; `copy_loads` returns the loads.  Raises UnsupportedError for a group that `check_group` refuses, CompileError if the
    assembler is missing or fails.
    """
    for number, group in enumerate(groups):
        check_group(group, f"instructions[{number}]")
    skipped = {reason: 1 for group in groups for copy in named(group, COPIES) if (reason := lacks(copy, group))}
    chosen = [named(group, EVERY_KERNEL) for group in groups]
    try:
        architecture = architecture_of(gpu)
    except UnsupportedError as error:
        left_out = list(dict.fromkeys(kernel.name for kernels in chosen for kernel in kernels))
        return (), ({f"{_few(left_out)}: {error}": len(left_out)} if left_out else {}) | skipped
    modules = _assembled(groups, chosen, architecture, toolchain, cache, remark)
    loads: dict[tuple[str | int, ...], GeneratedLoad] = {}
    for group, kernels in zip(groups, chosen, strict=True):
        running = []
        for kernel in kernels:
            reason = kernel.refusal(architecture) or _complaint(kernel, modules[group.level], group.level) or lacks(kernel, group)
            if reason:
                skipped[reason] = 1
            else:
                running.append(kernel)
        skipped |= _modes_left_out(group, [*running, *(copy for copy in named(group, COPIES) if not lacks(copy, group))])
        for kernel in running:
            for load in _launched(kernel, group, gpu, modules[group.level], seed, skipped):
                loads.setdefault(load.identity(), load)
    return tuple(loads.values()), skipped


def _assembled(
    groups: Sequence[LoadGroup],
    chosen: Sequence[list[Kernel]],
    architecture: str,
    toolchain: Toolchain | None,
    cache: Path | None,
    remark: Callable[[str], None],
) -> dict[str, CompiledModule]:
    """One module for each requested optimisation level with kernels on the architecture."""
    modules: dict[str, CompiledModule] = {}
    remarks: dict[str, None] = {}
    for level in dict.fromkeys(group.level for group in groups):
        wanted = {kernel.name for group, own in zip(groups, chosen, strict=True) if group.level == level for kernel in own}
        if kernels := [kernel for kernel in EVERY_KERNEL if kernel.name in wanted and not kernel.refusal(architecture)]:
            toolchain = toolchain or find_toolchain()
            modules[level] = compile_kernels(kernels, architecture, level, toolchain, cache, remarks.setdefault)
    for text in remarks:
        remark(text)
    return modules


def _complaint(kernel: Kernel, module: CompiledModule, level: str) -> str:
    try:
        check_body(kernel, module.entries[kernel.name], level)
    except InspectionError as error:
        return str(error)
    return ""


def _few(names: Sequence[str]) -> str:
    """The first FEW names as text."""
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return f"{', '.join(names[:FEW])}{more}"


def check_group(group: LoadGroup, path: str) -> None:
    """Raise UnsupportedError for unknown names, and if no kernel of a group runs as requested; `path` is the group's."""
    every: tuple[Named, ...] = (*EVERY_KERNEL, *COPIES)
    for key, patterns in (("kernels", group.kernels), ("without", group.without)):
        for pattern in patterns:
            if not any(fnmatchcase(one.name, pattern) for one in every):
                raise UnsupportedError(
                    f"{path}.{key}: no generated kernel is named {pattern!r}; `collect kernels` lists them, 'ffma*' takes a family"
                )
    reasons = [lacks(kernel, group) for kernel in named(group, EVERY_KERNEL)] + [lacks(copy, group) for copy in named(group, COPIES)]
    if not reasons:
        raise UnsupportedError(f"{path}.without = {list(group.without)!r} leaves none of the kernels that {path}.kernels names")
    if all(reasons):
        raise UnsupportedError(f"{path}: nothing runs as it asks; {reasons[0]}")


def named(group: LoadGroup, among: Sequence[N]) -> list[N]:
    """The kernels or copies of a group, in the catalogue's order."""

    def fits(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    return [one for one in among if fits(one.name, group.kernels) and not fits(one.name, group.without)]


def lacks(one: Named, group: LoadGroup) -> str:
    """Reason why a kernel or copy supports no mode, not the pattern or not the level of its group; "" if it runs."""
    asked = (("mode", group.modes, one.modes), ("pattern", (group.pattern,), one.patterns), ("level", (group.level,), one.levels))
    for key, wanted, there in asked:
        if not set(wanted) & set(there):
            return f"{one.name} has no {key} {' or '.join(wanted)}; it has {', '.join(there)}"
    return ""


def _modes_left_out(group: LoadGroup, running: Sequence[Named]) -> dict[str, int]:
    """Unsupported modes of kernels that run in another mode of their group, with the names and counts."""
    left_out = {}
    for mode in dict.fromkeys(group.modes):
        if names := [one.name for one in running if mode not in one.modes]:
            left_out[f"{_few(names)}: no launch mode {mode} (`collect kernels` lists those of each); launched in the others"] = len(names)
    return left_out


def _launched(
    kernel: Kernel, group: LoadGroup, gpu: GpuSpec, module: CompiledModule, seed: int, skipped: dict[str, int]
) -> list[GeneratedLoad]:
    """The loads of a kernel: one for each launch of each supported mode."""
    entry = module.entries[kernel.name]
    loads = []
    for mode in (mode for mode in kernel.modes if mode in group.modes):
        try:
            launches = plan_launches(kernel, gpu, entry, mode, iterations=1, pattern=cast(Pattern, group.pattern), seed=seed)
        except LaunchError as error:
            skipped[str(error)] = 1
            continue
        # Grids of a sweep over blocks differ in nothing else: all have the turns of the smallest.
        turns = sized_launch(kernel, launches[0], entry, gpu, SWEPT_LAUNCH_S).iterations if mode == "block_sweep" else 0
        for launch in launches:
            sized = replace(launch, iterations=turns) if turns else sized_launch(kernel, launch, entry, gpu)
            loads.append(module_load(kernel, sized, module, gpu))
    return loads


def module_load(kernel: Kernel, launch: Launch, module: CompiledModule, gpu: GpuSpec) -> GeneratedLoad:
    """A launch of a kernel of a module."""
    entry = module.entries[kernel.name]
    return GeneratedLoad(
        kernel=kernel,
        launch=launch,
        entry=entry,
        blocks_per_sm=resident_blocks(gpu, launch.threads_per_block, entry.registers, entry.shared_bytes),
        architecture=module.architecture,
        level=module.level,
        compiler=module.compiler,
        cubin_sha256=module.digest,
        cubin=module.cubin,
    )


def sized_launch(kernel: Kernel, launch: Launch, entry: InspectedEntry, gpu: GpuSpec, launch_s: float = LAUNCH_S) -> Launch:
    """The launch with the turns of its loop that last `launch_s` if every scheduler issues one instruction a clock.

    With slower instructions the launch is longer by the same factor.
    """
    warps = -(-launch.threads_per_block // WARP_LANES) * -(-launch.blocks // gpu.num_sms)
    issue_s = sum(entry.body.values()) * -(-warps // SUB_PARTITIONS) / (gpu.sm_clock_limit_mhz * 1e6)
    bytes_moved = kernel.work.transactions.get("dram", 0.0) * SECTOR_BYTES * launch.active_threads
    sleep_s = sum(SLEEPS_S.get(opcode, 0.0) * count for opcode, count in entry.body.items())
    # Assumed rate of a link: PCI Express 4.0 with 16 lanes, less its overhead [byte/s].
    linked_s = sum(kernel.work.bytes_moved.get(link, 0.0) for link in LINKS) * launch.active_threads / 25e9
    turn_s = max(issue_s, bytes_moved / gpu.dram_bytes_per_s, linked_s) + sleep_s
    turns = min(MOST_ITERATIONS, max(1, round(launch_s / max(turn_s, launch_s / MOST_ITERATIONS))))
    return replace(launch, iterations=turns)
