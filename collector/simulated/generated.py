"""Generated kernels in the simulated world: the planted time and energy of each machine instruction.

Time comes from issue intervals, latencies and the paths to memory.  The energy of a lane is the work of its unit plus the reads of
its registers; the energy of a warp is its issue, which costs more after an instruction for another unit.  Memory transactions and idle
slots of a working SM's schedulers cost energy too.  Links are full duplex: sent data do not slow received data.
The figures are plausible for tests of software and statistics, not measurements.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Final

from collector.errors import BoardProfileError
from collector.simulated.plan import steady_noise
from collector.simulated.profile import BoardProfile
from collector.simulated.scheduler import KernelTiming, TimedEnergy, loaded_bytes_per_s
from collector.simulated.silicon import JOULE_PER_PICOJOULE
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array
from estimator.vocabulary.reader import read_file
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.values import frozen
from microbench.kernel import WARP_LANES
from microbench.loads.copies import CopyLoad
from microbench.loads.generated import LINE_BYTES, SECTOR_BYTES, GeneratedLoad
from microbench.sizing import SUB_PARTITIONS
from microbench.toolchain.inspect import InspectedEntry

ISSUE_PJ: Final = 24.0
"""Energy of fetching, decoding and scheduling one instruction of a warp, without lanes [pJ]."""

STALL_PJ: Final = 9.0
"""Energy of a scheduler slot of a working SM that issues nothing [pJ]."""

CHANGE_PJ: Final = 6.0
"""Energy added to an issue if the preceding instruction used another unit [pJ]."""


OVERLAP_NORM: Final = 6.0
"""Norm that joins the times of a loop's concurrent limits: the largest decides, the next ones cost a little."""

L1_LATENCY_CLOCKS: Final = 33.0
START_CLOCKS: Final = 900.0
IN_FLIGHT_LOADS: Final = 8.0


@frozen
class Kind:
    """Instructions of one kind.

    `lane_pj` is the energy of one lane relative to the board's `cuda_pj_per_op`; `interval` the clocks between two of them on one
    scheduler, `latency` the clocks until a result can be used; `pipe` their shared unit.
    """

    lane_pj: float
    interval: float
    latency: float
    pipe: str


@cache
def kinds() -> Mapping[str, Kind]:
    """Kinds by the first words of an opcode; the longest match applies, "other" without a match."""
    path = resource_folder("simulated") / "instructions.toml"
    return read_file(Mapping[str, Kind], path, "simulated instructions", BoardProfileError)  # type: ignore[type-abstract]


UNIFORM: Final = ("BRA", "BSSY", "BSYNC", "BAR", "CALL", "RET", "DEPBAR", "WARPSYNC", "NOP", "NANOSLEEP", "EXIT")
"""Opcodes that work once for a warp, like those of the uniform datapath."""


def moves_data(opcode: str) -> bool:
    """Whether an opcode moves data between registers and memory."""
    return opcode.startswith(("LD", "ST", "ATOM", "RED.", "UBLKCP")) and not opcode.startswith("LDGDEPBAR")


def works_once(opcode: str) -> bool:
    """Whether an opcode has no lanes: control flow, and the uniform datapath."""
    return opcode.startswith(("U", "LDGDEPBAR")) or opcode.partition(".")[0] in UNIFORM


def kind_of(opcode: str) -> Kind:
    """The kind of an opcode, with its times and the energy of its unit; a copy goes through the unit of its opcode."""
    words = opcode.split(".")
    if words[1:2] == ["MOV"]:
        # energy of one lane of a copy instruction, relative to the board's `cuda_pj_per_op` [1]
        return replace(kind_of(words[0]), lane_pj=0.17)
    known = kinds()
    names = [".".join(words[:count]) for count in range(len(words), 0, -1)]
    return next((known[name] for name in (*names, words[0].rstrip("0123456789")) if name in known), known["other"])


def planted_lane_energy_j(profile: BoardProfile, opcode: str, reads: float) -> float:
    """Energy of one lane of an instruction with this many register reads, at the reference voltage on random data [J]."""
    # standard deviation of an opcode's energy around that of its kind [1]
    own = 1.0 + 0.01 * steady_noise("opcode", opcode)
    # energy of one register read by one lane, relative to the board's `cuda_pj_per_op` [1]
    # share of an instruction's energy that does not depend on its register reads [1]
    relative = kind_of(opcode).lane_pj * own * 0.8 + 0.045 * reads
    return relative * profile.energy.cuda_pj_per_op * JOULE_PER_PICOJOULE


def planted_body_energy_j(profile: BoardProfile, entry: InspectedEntry) -> dict[str, float]:
    """Energy of all lanes of a warp's thread in one turn of a loop, by opcode, at the reference voltage on random data [J]."""
    return {
        opcode: count * planted_lane_energy_j(profile, opcode, entry.reads[opcode] / count)
        for opcode, count in entry.body.items()
        if not works_once(opcode) and not moves_data(opcode)
    }


def changes_of_unit(entry: InspectedEntry) -> float:
    """Mean number of changes to another unit between the instructions of a loop, in random order [1]."""
    units: defaultdict[str, float] = defaultdict(float)
    for opcode, count in entry.body.items():
        units["uniform" if works_once(opcode) else "lsu" if moves_data(opcode) else kind_of(opcode).pipe] += count
    total = sum(units.values())
    return total - sum(count**2 for count in units.values()) / total


def planted_transaction_energy_j(profile: BoardProfile) -> dict[str, float]:
    """Energy of one transaction by level at the reference voltage [J]."""
    energy = profile.energy
    picojoules = {
        "shared": LINE_BYTES * energy.shared_pj_per_byte,
        "l1": LINE_BYTES * 4.1,  # [pJ/byte]
        "l2": SECTOR_BYTES * energy.l2_pj_per_byte,
        "dram": SECTOR_BYTES * energy.dram_pj_per_byte,
    }
    return {level: value * JOULE_PER_PICOJOULE for level, value in picojoules.items()}


def generated_point(profile: BoardProfile, load: GeneratedLoad, sm_clock_mhz: float, speeds: Array) -> TimedEnergy:
    """Time and energy of one launch at a clock; `speeds` are the SMs' relative times, shape (num_sms,)."""
    num_sms, clock_hz = profile.spec.num_sms, sm_clock_mhz * HZ_PER_MHZ
    # equal blocks that start together end together: blocks of each round, and the number of such rounds
    resident = num_sms * max(1, load.blocks_per_sm)
    whole, rest = divmod(load.launch.blocks, resident)
    rounds = ({resident: whole} if whole else {}) | ({rest: 1} if rest else {})
    gpu_s, sm_seconds = START_CLOCKS / clock_hz, START_CLOCKS / clock_hz * min(load.launch.blocks, num_sms)
    for blocks, times in rounds.items():
        sms = min(blocks, num_sms)
        round_s = _turn_s(profile, load, clock_hz, blocks) * load.launch.iterations * float(speeds[:sms].max())
        gpu_s += times * round_s
        sm_seconds += times * round_s * sms
    timing = KernelTiming(gpu_s=gpu_s, busy_share=sm_seconds / gpu_s / num_sms)
    return timing, _energy(profile, load, sm_seconds * clock_hz * SUB_PARTITIONS)


def _turn_s(profile: BoardProfile, load: GeneratedLoad, clock_hz: float, blocks: int) -> float:
    """Time of one turn of the loop for every warp on the fullest SM, with `blocks` resident blocks [s]."""
    gpu, body = profile.spec, load.entry.body
    sms = min(blocks, gpu.num_sms)
    warps = load.active_warps / load.launch.blocks * math.ceil(blocks / gpu.num_sms)
    on_scheduler = math.ceil(warps / SUB_PARTITIONS)
    pipes: defaultdict[str, float] = defaultdict(float)
    for opcode, count in body.items():
        if not works_once(opcode) and not moves_data(opcode):
            kind = kind_of(opcode)
            pipes[kind.pipe] += count * _interval(kind, gpu) * on_scheduler
    limits = [float(sum(body.values()) * on_scheduler), *pipes.values(), _latency_clocks(profile, load, clock_hz)]
    lanes = load.launch.active_threads * blocks / load.launch.blocks
    work = load.kernel.work
    transactions = work.transactions
    ports = transactions.get("shared", 0.0) + transactions.get("l1", 0.0)
    limits.append(ports * lanes / sms)
    for level in ("l2", "dram"):
        moved = transactions.get(level, 0.0) * SECTOR_BYTES * lanes
        if moved:
            rate = loaded_bytes_per_s(
                profile,
                in_flight=min(moved * (IN_FLIGHT_LOADS / max(1, load.kernel.unroll)), sms * profile.memory.outstanding_bytes),
                dram_share=1.0 if level == "dram" else 0.0,
                clock_hz=clock_hz,
                sms=sms,
                path_share=1.0,
                fixed_s=0.0,
            )
            limits.append(moved / rate * clock_hz)
    if load.link:
        limits.append(work.bytes_moved[load.link] * lanes / profile.link[load.link].bytes_per_s * clock_hz)
    clocks = math.pow(sum(limit**OVERLAP_NORM for limit in limits), 1.0 / OVERLAP_NORM)
    return clocks / clock_hz + 0.9e-3 * body.get("NANOSLEEP", 0)  # [s]


def _interval(kind: Kind, gpu: GpuSpec) -> float:
    """Clocks between two instructions of a kind on one scheduler of this GPU."""
    if kind.pipe in ("fp32", "fp16"):
        return kind.interval * WARP_LANES * SUB_PARTITIONS / gpu.fp32_lanes
    if kind.pipe == "fp64":
        rate = gpu.cuda_flop_per_clock.get("fp64", gpu.fp32_lanes / WARP_LANES)
        return 2.0 * WARP_LANES * SUB_PARTITIONS / rate
    return kind.interval


def _latency_clocks(profile: BoardProfile, load: GeneratedLoad, clock_hz: float) -> float:
    """Clocks of one warp for a turn, independent of the number of other warps: its dependent instructions one after the other."""
    kernel = load.kernel
    chained = 0.0
    waits = {
        "shared": 23.0,
        "l1": L1_LATENCY_CLOCKS,
        "l2": profile.memory.l2_latency_clocks,
        "dram": profile.memory.l2_latency_clocks + profile.memory.dram_latency_s * clock_hz,
    }
    if load.link:
        waits[load.link] = profile.link[load.link].latency_s * clock_hz
    dependent = "chase" in kernel.family or kernel.family == "stall_mix"
    for opcode, count in load.entry.body.items():
        if moves_data(opcode):
            chained += waits.get(kernel.level, L1_LATENCY_CLOCKS) * (count if dependent else count / IN_FLIGHT_LOADS)
        elif not works_once(opcode):
            chained += kind_of(opcode).latency * count / kernel.chains
    if load.module.level == "O0":
        # clocks that a warp waits after every instruction of code assembled at O0, as its control words say (seen
        # with ptxas 13.0 for sm_90)
        return max(chained, 15.0 * sum(load.entry.body.values()))
    return chained


def _energy(profile: BoardProfile, load: GeneratedLoad, slots: float) -> tuple[float, float]:
    """Energy of a launch with `slots` issue slots on working SMs; the power of an awake SM belongs to the board."""
    launch, turns = load.launch, load.active_warps * load.launch.iterations
    # Energy of lanes relative to random data: fewer bits toggle.
    factor = {"random": 1.0, "constant": 0.78, "zero": 0.62}[launch.pattern]
    core_j = sum(planted_body_energy_j(profile, load.entry).values()) * factor * launch.active_threads * launch.iterations
    issued = float(sum(load.entry.body.values())) * turns
    issue_pj = ISSUE_PJ * issued + CHANGE_PJ * changes_of_unit(load.entry) * turns + STALL_PJ * max(0.0, slots - issued)
    core_j += issue_pj * JOULE_PER_PICOJOULE
    counts, each = load.transactions(), planted_transaction_energy_j(profile)
    core_j += sum(counts[level] * each[level] for level in ("shared", "l1", "l2"))
    if load.link:
        core_j += profile.link[load.link].pj_per_byte * JOULE_PER_PICOJOULE * load.link_bytes()
    return core_j, counts["dram"] * each["dram"]


def copy_point(profile: BoardProfile, load: CopyLoad) -> TimedEnergy:
    """Time and energy of one copy: no SM works, the memory of this board is read or written, or both."""
    moved = float(load.bytes_moved)
    # share of the DRAM's bandwidth that a copy within the board reaches: each byte is read and written
    passes, rate, crossed_pj = 2.0, 0.45 * profile.spec.dram_bytes_per_s, 0.0
    if load.link != "device":
        link = profile.link[load.link]
        passes, rate, crossed_pj = 1.0, link.bytes_per_s, link.pj_per_byte
    core_pj = crossed_pj + 6.0 + passes * profile.energy.l2_pj_per_byte  # with a copy engine's own work
    dram_pj = passes * profile.energy.dram_pj_per_byte
    # start time of a copy engine for one copy [s]
    timing = KernelTiming(gpu_s=moved / rate + 4e-6, busy_share=0.0)
    return timing, (core_pj * moved * JOULE_PER_PICOJOULE, dram_pj * moved * JOULE_PER_PICOJOULE)
