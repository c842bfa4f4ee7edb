"""Duration of a launch: blocks placed on SMs, each limited by its SM and the loaded memory path."""

import math
from typing import Final

import numpy as np

from collector.simulated.plan import KernelPlan
from collector.simulated.profile import BoardProfile
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen
from microbench.kernel import WARP_LANES

STORE_PATH_SHARE: Final = 0.5
"""Share of an SM's port that stores reach."""


@frozen
class KernelTiming:
    """GPU time of one launch [s] and the mean share of busy SMs during it."""

    gpu_s: float
    busy_share: float


TimedEnergy = tuple[KernelTiming, tuple[float, float]]
"""Timing of a launch, and its energy in the core and in memory [J]."""


def loaded_bytes_per_s(
    profile: BoardProfile,
    *,
    in_flight: float,
    dram_share: float,
    clock_hz: float,
    sms: int,
    path_share: float,
    fixed_s: float,
) -> float:
    """Throughput of the memory path with `in_flight` bytes outstanding [byte/s].

    Little's law with a latency that grows with the load of each stage by u / (1 − u): the reachable rate x solves
    x · latency(x) = in_flight.  `dram_share` of the bytes continue to DRAM; `fixed_s` passes without an outstanding request.
    """
    memory, gpu = profile.memory, profile.spec
    path = memory.path_bytes_per_clock * path_share * sms * clock_hz
    l2 = memory.l2_share * gpu.l2_bytes_per_clock * clock_hz
    dram = memory.dram_share * gpu.dram_bytes_per_s / max(dram_share, 1e-9)
    path_queue_s = memory.path_queue_clocks / clock_hz
    dram_queue_s = memory.dram_queue_s * min(1.0, dram_share)
    unloaded = memory.l2_latency_clocks / clock_hz + min(1.0, dram_share) * memory.dram_latency_s + fixed_s
    low, high = 0.0, min(path, l2, dram)
    for _ in range(30):
        rate = 0.5 * (low + high)
        latency = unloaded + path_queue_s * rate * (1.0 / (path - rate) + 1.0 / (l2 - rate)) + dram_queue_s * rate / (dram - rate)
        if rate * latency < in_flight:
            low = rate
        else:
            high = rate
    return low


@frozen
class Pace:
    """A kernel at a clock; `dram_share` are DRAM bytes per byte that the blocks load and store."""

    profile: BoardProfile
    plan: KernelPlan
    clock_hz: float
    dram_share: float

    @property
    def start_s(self) -> float:
        """Time from a block's dispatch to its first operand [s]."""
        memory = self.profile.memory
        clocks = self.profile.schedule.block_start_clocks + (memory.l2_latency_clocks if self.plan.load_bytes else 0.0)
        return clocks / self.clock_hz + min(1.0, self.dram_share) * memory.dram_latency_s

    def round_s(self, blocks: int) -> float:
        """Time for `blocks` resident blocks, spread over the SMs, to run side by side [s]."""
        plan, profile, clock_hz = self.plan, self.profile, self.clock_hz
        gpu, memory = profile.spec, profile.memory
        sms = min(blocks, gpu.num_sms)
        resident = math.ceil(blocks / gpu.num_sms)
        warps = resident * -(-plan.kernel.block[0] // WARP_LANES)
        lanes, special = plan.lane_ops / gpu.fp32_lanes, plan.sfu_ops / gpu.sfu_op_per_clock
        shared = plan.shared_bytes / gpu.shared_bytes_per_clock
        clocks = np.array([plan.product_clocks * plan.blocks, lanes, special, shared]) * resident / plan.blocks
        if plan.on_cuda_cores:
            clocks[:2] = 0.0, clocks[:2].sum()
        clocks = clocks / min(1.0, warps / 4)  # sub-partitions of an SM; fewer warps than these leave units idle
        busiest = float(clocks.max())
        compute_s = max(busiest + (float(clocks.sum()) - busiest) / (1.0 + warps), plan.steps * plan.step_clocks) / clock_hz
        in_flight = blocks * plan.in_flight_bytes
        rate = loaded_bytes_per_s(
            profile,
            in_flight=in_flight if plan.asynchronous else min(in_flight, sms * memory.outstanding_bytes),
            dram_share=self.dram_share,
            clock_hz=clock_hz,
            sms=sms,
            path_share=plan.path_share,
            fixed_s=profile.schedule.block_start_clocks / clock_hz / max(1.0, plan.steps),
        )
        memory_s = blocks * plan.load_bytes / rate
        # number of independent pieces of work beyond which overlap does not improve: barriers and shared queues remain
        depth = 1.0 + min(resident * plan.steps, 12.0)
        work_s = max(compute_s, memory_s) + min(compute_s, memory_s) / depth
        port = memory.path_bytes_per_clock * STORE_PATH_SHARE * sms * clock_hz
        to_dram = memory.dram_share * gpu.dram_bytes_per_s / max(min(1.0, self.dram_share), 1e-9)
        end_s = plan.epilogue_clocks / clock_hz + blocks * plan.store_bytes * (1.0 / port + 1.0 / to_dram)
        return work_s + (self.start_s + end_s) / resident


def kernel_timing(profile: BoardProfile, plan: KernelPlan, l2_state: str, sm_clock_mhz: float, speeds: Array) -> KernelTiming:
    """GPU time of one launch at a clock; `speeds` are the SMs' relative block times, shape (num_sms,)."""
    clock_hz, blocks, num_sms, memory = sm_clock_mhz * 1e6, plan.blocks, profile.spec.num_sms, profile.memory
    dram_share = plan.traffic[l2_state] / max(1.0, blocks * (plan.load_bytes + plan.store_bytes))
    pace = Pace(profile=profile, plan=plan, clock_hz=clock_hz, dram_share=dram_share)
    slots = num_sms * plan.kernel.blocks_per_sm
    if plan.longest_block and blocks > slots:
        placed, busy = pace.round_s(slots) * plan.placed_rounds, blocks / slots / plan.placed_rounds
    elif plan.longest_block:
        placed, busy = pace.round_s(blocks) * plan.longest_block, min(1.0, blocks / num_sms) / plan.longest_block
    elif blocks <= slots:
        busy = min(1.0, blocks / num_sms)
        placed = pace.round_s(blocks) * float(speeds[: min(blocks, num_sms)].max())
        placed *= 1.0 + profile.schedule.block_spread * _largest_of(blocks)
    else:
        placed, busy = _place_equal(pace, slots, speeds)
    placed = max(placed, blocks * profile.schedule.dispatch_clocks / clock_hz)
    side_by_side = min(plan.kernel.blocks_per_sm, math.ceil(blocks / num_sms))
    hidden_start = pace.start_s * (1.0 - 1.0 / side_by_side)
    written = plan.follow_up_bytes / (memory.path_bytes_per_clock * STORE_PATH_SHARE * num_sms)
    total = placed + hidden_start + (plan.follow_up_clocks + written) / clock_hz
    if profile.faults.hidden_slowdown and plan.has_pitch(profile.faults.hidden_pitch_bytes):
        total *= 1.0 + profile.faults.hidden_slowdown
    return KernelTiming(gpu_s=total, busy_share=busy * placed / total)


def _largest_of(count: int) -> float:
    """Expected largest of `count` standard normal numbers, to a few per cent."""
    return math.sqrt(2.0 * math.log(count)) * 0.9 if count > 1 else 0.0


def _place_equal(pace: Pace, slots: int, speeds: Array) -> tuple[float, float]:
    """Makespan [s] and busy share of equal blocks: each free slot takes the next block."""
    plan, num_sms, full_s = pace.plan, pace.profile.spec.num_sms, pace.round_s(slots)
    blocks = plan.blocks
    rounds, left = divmod(blocks, slots)
    if plan.spread_tail and left:
        # a persistent kernel cannot divide its last wave more finely than this [wave]
        share = max(left / slots, 0.2) + 0.04  # cost of dividing the last wave, in waves
        return (rounds + share) * full_s * float(speeds.mean()), 1.0
    tail_s = pace.round_s(left) if left else full_s
    # greatest number of rounds with blocks placed one by one; beyond, starts have spread so far that work flows evenly
    if rounds > 30:
        start = blocks * full_s / (plan.kernel.blocks_per_sm * float((1.0 / speeds).sum()))
        drain = 0.5 * pace.round_s(max(1, slots // 2))
        return start + drain, (start + 0.5 * drain) / (start + drain)
    own = full_s * speeds
    first = max(0, rounds - 3)
    count = np.arange(first, rounds + 4, dtype=np.float64)
    starts = own[:, None] * count[None, :]
    order = np.sort(starts, axis=None)
    last = order[max(0, math.ceil(blocks / plan.kernel.blocks_per_sm) - first * num_sms - 1)]
    begun = (starts <= last).sum(axis=1) + first
    final = begun == begun.max()
    in_tail = final & (left > 0)
    luck = pace.profile.schedule.block_spread
    full_end = own * begun + full_s * luck * _largest_of(slots)
    tail_end = own * (begun - 1) + tail_s * (speeds + luck * _largest_of(left))
    makespan = float(np.where(in_tail, np.maximum(tail_end, full_end - own), full_end).max())
    worked = blocks / slots * full_s * float(speeds.mean())
    return makespan, min(1.0, (worked if not left else rounds * full_s + min(left, num_sms) / num_sms * tail_s) / makespan)
