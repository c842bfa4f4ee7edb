"""Generated kernels made ready to be measured: compiled, inspected, launched in a mode, with all that they do counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from estimator.frozen import FrozenMapping
from estimator.gpu import GpuSpec
from estimator.specifications import near_match
from estimator.workload import Operator
from microbench.errors import InspectionError, LaunchError, UnsupportedError
from microbench.families.catalogue import HOST_LOADS, KERNELS, SWEEP
from microbench.families.frames import LINE_BYTES, SECTOR_BYTES
from microbench.kernel import ARCHITECTURES, WARP_LANES, HostLoad, Kernel, Launch, Mode, Pattern, PreparedKernel
from microbench.loads.launch import MOST_ITERATIONS, plan_launches
from microbench.occupancy import SUB_PARTITIONS, resident_blocks
from microbench.operands import buffer_bytes
from microbench.toolchain.compile import CompiledModule, Toolchain, compile_kernels, find_toolchain
from microbench.toolchain.inspect import InspectedEntry, check_body

FAMILY: Final = "instruction"
"""Family of generated kernels in datasets; no operator of a workload has it."""

MODES: Final[tuple[Mode, ...]] = ("full", "sm_sweep", "lane_sweep", "single", "block_sweep")
"""Launch modes (`microbench.loads.launch`)."""

PATTERNS: Final[tuple[Pattern, ...]] = ("zero", "constant", "random")
"""What operands hold."""

LAUNCH_S: Final = 4e-3
"""Time that one launch is sized for [s]: a thousand times what a launch costs the host, so that gaps do not count."""

SWEPT_LAUNCH_S: Final = 1e-3
"""The same for the smallest grid of a sweep over blocks [s]: the largest takes several hundred times as long."""

SLEEPS_S: Final[dict[str, float]] = {"NANOSLEEP": 1e-3}
"""Instructions that wait, with the longest wait that they take [s] (PTX ISA, nanosleep)."""

LEVELS: Final = ("shared", "l1", "l2", "dram")
"""Levels whose transactions are counted: 128-byte ones of shared memory and L1, 32-byte ones of L2 and DRAM."""

LINKS: Final = ("host", "peer")
"""Levels beyond the board."""

LINK_BYTES_PER_S: Final = 25e9
"""What a link is taken to carry where launches are sized: PCI Express 4.0 with 16 lanes, less its overhead [byte/s]."""

ARCHITECTURE_FEATURES: Final[dict[str, str]] = {"sm_90": "sm_90a"}
"""Architectures whose full set of instructions has a name of its own."""

FEW: Final = 3
"""Names that a message repeats."""

COPIES: Final = tuple(load for load in HOST_LOADS if load.bytes_moved)
"""Loads of the copy engines that move something."""

RESTING: Final = frozenset(load.name for load in HOST_LOADS if not load.bytes_moved)
"""Loads of nothing at all."""

COPY_WAYS: Final[dict[str, str]] = {"modes": "full", "pattern": "random", "level": "O3"}
"""What a group must say for its copies: they have no launch, random bytes and no machine code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGroup:
    """Which kernels are measured in which way.

    `kernels` are names of the catalogue, wildcards allowed (`ffma_*`), `without` those left out again.  Each runs in every one of
    `modes` that it has.  Copies by the copy engines are named alike; they are there in the ways of COPY_WAYS alone.
    """

    kernels: tuple[str, ...]
    without: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("full",)
    pattern: str = "random"
    level: str = "O3"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedLoad:
    """A generated kernel in one launch: the machine code that was inspected, and what a launch of it does.

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
        """The load under the names of a dataset; its number format is the last word of the PTX instruction."""
        *_, last = self.kernel.instruction.split(".")
        precision = last if last[-1:].isdecimal() or "x" in last else "none"
        return Operator(family=FAMILY, operator=self.kernel.name, precision=precision, shape=())

    @property
    def active_warps(self) -> int:
        """Warps of a launch; each has at least one thread that works."""
        return self.launch.blocks * -(-self.launch.threads_per_block // WARP_LANES)

    def identity(self) -> tuple[str | int, ...]:
        """What tells this load from others of a campaign."""
        launch = self.launch
        lanes, blocks, threads = launch.active_lanes, launch.blocks, launch.threads_per_block
        return (self.kernel.name, self.level, self.architecture, launch.mode, launch.pattern, lanes, blocks, threads)

    def told(self) -> tuple[str | int, ...]:
        """Its identity, the digest of its machine code and the turns of its loop: what must agree for it to be the same load."""
        return (*self.identity(), self.cubin_sha256, self.launch.iterations)

    def transactions(self) -> FrozenMapping[float]:
        """Transactions of one launch by level, by construction.

        Data of a level pass every level above on their way to the registers: a sector from DRAM is one from L2 as well, and
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
        """What its data cross beyond the board: "host", "peer", or "" for nothing."""
        return self.kernel.level if self.kernel.level in LINKS else ""

    def link_bytes(self) -> float:
        """Bytes that cross the link in one launch, by construction [byte]."""
        return self.kernel.work.bytes_moved.get(self.link, 0.0) * self.launch.active_threads * self.launch.iterations


def prepared_load(load: GeneratedLoad, corrupted: str = "") -> PreparedKernel:
    """A load as runners speak of kernels; `corrupted` says what was wrong with its results."""
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
        tile_m=0,
        tile_n=0,
        tile_k=0,
        stages=0,
        split_k=0,
        transpose="",
        working_set_bytes=buffer_bytes(load.kernel, launch),
        buffer_sets=1,
        corrupted=corrupted,
    )


def architecture_of(gpu: GpuSpec) -> str:
    """The target that kernels are assembled for.  Raises UnsupportedError for a GPU that the catalogue is not compiled for."""
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
    """The loads of all groups, each once, and the reasons why others cannot run here, counted.

    A kernel whose machine code is not what it promises is not measured, and none is on a GPU that kernels are not assembled for.
    `toolchain` is looked for where it is not given and something is to be assembled.  `cache` is a folder that keeps machine code from one
    call to the next (`compile_kernels`); `remark` is told once where it cannot be used.  Of copies by the copy engines only those are
    named that a group asks for in a way that they have not; `copy_loads` has the others.  Raises UnsupportedError for a group that
    `check_group` refuses, CompileError where the assembler is missing or refuses.
    """
    for number, group in enumerate(groups):
        check_group(group, f"instructions[{number}]")
    skipped = {reason: 1 for group in groups for copy in named_copies(group) if (reason := copy_refusal(copy, group))}
    chosen = [named_kernels(group) for group in groups]
    try:
        architecture = architecture_of(gpu)
    except UnsupportedError as error:
        left_out = list(dict.fromkeys(kernel.name for kernels in chosen for kernel in kernels))
        return (), ({f"{_few(left_out)}: {error}": len(left_out)} if left_out else {}) | skipped
    loads: dict[tuple[str | int, ...], GeneratedLoad] = {}
    modules: dict[str, CompiledModule] = {}
    remarks: dict[str, None] = {}
    for level in dict.fromkeys(group.level for group in groups):
        wanted = dict.fromkeys(k.name for group, own in zip(groups, chosen, strict=True) if group.level == level for k in own)
        kernels = [kernel for kernel in (*KERNELS, *SWEEP) if kernel.name in wanted and not kernel.refusal(architecture)]
        if kernels:
            toolchain = toolchain or find_toolchain()
            modules[level] = compile_kernels(kernels, architecture, level, toolchain, cache, lambda text: remarks.setdefault(text, None))
    for text in remarks:
        remark(text)
    for group, kernels in zip(groups, chosen, strict=True):
        skipped |= _modes_left_out(group, [kernel for kernel in kernels if not kernel.refusal(architecture)])
        for kernel in kernels:
            if refusal := kernel.refusal(architecture):
                skipped[refusal] = 1
                continue
            module = modules[group.level]
            try:
                check_body(kernel, module.entries[kernel.name], group.level)
            except InspectionError as error:
                skipped[str(error)] = 1
                continue
            if reason := _lacks(kernel, group):
                skipped[reason] = 1
                continue
            for load in _launched(kernel, group, gpu, module, seed, skipped):
                loads.setdefault(load.identity(), load)
    return tuple(loads.values()), skipped


def _few(names: Sequence[str]) -> str:
    """The first names of many."""
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return f"{', '.join(names[:FEW])}{more}"


def check_group(group: LoadGroup, path: str) -> None:
    """Refuse a group of names that nothing has, of which `without` leaves nothing, or of copies in a way that copies have not.

    Raises UnsupportedError, naming the key below `path`.
    """
    every = (*KERNELS, *SWEEP)
    names = (*(kernel.name for kernel in every), *(copy.name for copy in COPIES))
    for key, patterns in (("kernels", group.kernels), ("without", group.without)):
        for pattern in patterns:
            if pattern in RESTING:
                raise UnsupportedError(f"{path}.{key}: {pattern!r} is no kernel; every campaign measures power at rest, at each clock")
            if not any(fnmatchcase(name, pattern) for name in names):
                close = near_match(pattern.lower(), dict.fromkeys((*(n for k in every for n in (k.name, f"{k.family}*")), *names)))
                raise UnsupportedError(
                    f"{path}.{key}: no generated kernel is named {pattern!r}{close}; `collect kernels` lists them, 'ffma*' takes a family"
                )
    copies = named_copies(group)
    if named_kernels(group):
        return
    if not copies:
        raise UnsupportedError(f"{path}.without = {list(group.without)!r} leaves none of the kernels that {path}.kernels names")
    for key, way in COPY_WAYS.items():
        given = getattr(group, key)
        foreign = [one for one in (given if key == "modes" else (given,)) if one != way]
        if foreign:
            raise UnsupportedError(f"{path}.{key} = {foreign[0]!r} is nothing that copies ({copies[0].name}) have; leave the key out")


def named_kernels(group: LoadGroup) -> list[Kernel]:
    """The kernels of a group, in the catalogue's order."""
    return [kernel for kernel in (*KERNELS, *SWEEP) if _names(group, kernel.name)]


def named_copies(group: LoadGroup) -> list[HostLoad]:
    """The copies by the copy engines that a group names, in the catalogue's order."""
    return [copy for copy in COPIES if _names(group, copy.name)]


def _names(group: LoadGroup, name: str) -> bool:
    taken = any(fnmatchcase(name, pattern) for pattern in group.kernels)
    return taken and not any(fnmatchcase(name, pattern) for pattern in group.without)


def copy_refusal(copy: HostLoad, group: LoadGroup) -> str:
    """Why a copy does not run as its group asks; empty where it does."""
    if COPY_WAYS["modes"] not in group.modes:
        return f"{copy.name} is not launched as {' or '.join(group.modes)}; copies have modes = ['full'] alone"
    if group.pattern != COPY_WAYS["pattern"]:
        return f"{copy.name} has no {group.pattern} data; copies have pattern = 'random' alone"
    if group.level != COPY_WAYS["level"]:
        return f"{copy.name} has no machine code of level {group.level}; name copies in a group of their own"
    return ""


def _lacks(kernel: Kernel, group: LoadGroup) -> str:
    """Why a kernel runs in no way that its group asks for; empty where it runs in one."""
    if group.pattern not in kernel.patterns:
        return f"{kernel.name} has no operands that are {group.pattern}; it has: {', '.join(kernel.patterns)}"
    if not any(mode in kernel.modes for mode in group.modes):
        return f"{kernel.name} is not launched as {' or '.join(group.modes)}; it is as {', '.join(kernel.modes)}"
    return ""


def _modes_left_out(group: LoadGroup, kernels: Sequence[Kernel]) -> dict[str, int]:
    """Modes of a group in which kernels and copies that run in another one of it cannot be launched, with their names, counted."""
    copies = [copy.name for copy in named_copies(group) if not copy_refusal(copy, group)]
    left_out = {}
    for mode in dict.fromkeys(group.modes):
        names = [kernel.name for kernel in kernels if mode not in kernel.modes and not _lacks(kernel, group)]
        names += copies if mode != COPY_WAYS["modes"] else []
        if names:
            left_out[f"{_few(names)}: no launch mode {mode} (`collect kernels` lists those of each); launched in the others"] = len(names)
    return left_out


def _launched(
    kernel: Kernel, group: LoadGroup, gpu: GpuSpec, module: CompiledModule, seed: int, skipped: dict[str, int]
) -> list[GeneratedLoad]:
    """The loads of a kernel: one for each launch of each mode that it has."""
    entry = module.entries[kernel.name]
    loads = []
    for mode in group.modes:
        if mode not in kernel.modes:
            continue
        try:
            launches = plan_launches(kernel, gpu, entry, _mode(mode), iterations=1, pattern=_pattern(group.pattern), seed=seed)
        except LaunchError as error:
            skipped[str(error)] = 1
            continue
        # Grids of a sweep over blocks must differ in nothing else: all have the turns of the smallest.
        turns = sized_launch(kernel, launches[0], entry, gpu, SWEPT_LAUNCH_S).iterations if mode == "block_sweep" else 0
        for launch in launches:
            loads.append(
                GeneratedLoad(
                    kernel=kernel,
                    launch=replace(launch, iterations=turns) if turns else sized_launch(kernel, launch, entry, gpu),
                    entry=entry,
                    blocks_per_sm=resident_blocks(gpu, launch.threads_per_block, entry.registers, entry.shared_bytes),
                    architecture=module.architecture,
                    level=module.level,
                    compiler=module.compiler,
                    cubin_sha256=module.digest,
                    cubin=module.cubin,
                )
            )
    return loads


def _mode(text: str) -> Mode:
    for mode in MODES:
        if text == mode:
            return mode
    raise UnsupportedError(f"launch mode {text!r} is unknown; known: {', '.join(MODES)}")


def _pattern(text: str) -> Pattern:
    for pattern in PATTERNS:
        if text == pattern:
            return pattern
    raise UnsupportedError(f"data pattern {text!r} is unknown; known: {', '.join(PATTERNS)}")


def sized_launch(kernel: Kernel, launch: Launch, entry: InspectedEntry, gpu: GpuSpec, launch_s: float = LAUNCH_S) -> Launch:
    """The launch with as many turns of its loop as last `launch_s` where every scheduler issues one instruction a clock.

    Where instructions are slower the launch is longer, by the factor that they are slower.
    """
    warps = -(-launch.threads_per_block // WARP_LANES) * -(-launch.blocks // gpu.num_sms)
    issue_s = sum(entry.body.values()) * -(-warps // SUB_PARTITIONS) / (gpu.sm_clock_limit_mhz * 1e6)
    bytes_moved = kernel.work.transactions.get("dram", 0.0) * SECTOR_BYTES * launch.active_threads
    sleep_s = sum(SLEEPS_S.get(opcode, 0.0) * count for opcode, count in entry.body.items())
    linked_s = sum(kernel.work.bytes_moved.get(link, 0.0) for link in LINKS) * launch.active_threads / LINK_BYTES_PER_S
    turn_s = max(issue_s, bytes_moved / gpu.dram_bytes_per_s, linked_s) + sleep_s
    turns = min(MOST_ITERATIONS, max(1, round(launch_s / max(turn_s, launch_s / MOST_ITERATIONS))))
    return replace(launch, iterations=turns)
