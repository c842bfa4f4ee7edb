"""Counts of one module → counts of N modules that share the work: time by a bandwidth bound of the links, traffic over them, stalls.

    T_N = max(T_1 / N, L / (N B))        L = (1 − s) D h        stalls_N = stalls_1 + (issued + stalls_1) (N T_N / T_1 − 1)

D are the DRAM's bytes, s the share of them that a module finds in its own memory, B the bandwidth of a module's links, h the mean number
of hops to another module: 1 through a switch; N² / 4 (N − 1), or (N + 1) / 4 for an odd N, on a ring of two directions.  The work itself
is assumed to scale without loss, so that the time is a lower bound.
Source of the question: Arunkumar et al., GPUJoule (HPCA 2019), section V; the bound is ours.
"""

from dataclasses import replace
from typing import Literal

from estimator.counts.activities import CountedKernel
from estimator.counts.energies import TRANSACTION_BYTES
from estimator.vocabulary.values import frozen

Topology = Literal["ring", "switch"]


@frozen
class Links:
    """Links of a module: bandwidth [byte/s], topology, and the share of traffic that stays local (None: 1/N, data spread evenly)."""

    bytes_per_s: float
    topology: Topology = "ring"
    local_share: float | None = None


def mean_hops(modules: int, topology: Topology) -> float:
    """Mean number of links between two different modules; 0 for one module."""
    if modules == 1 or topology == "switch":
        return float(modules > 1)
    return modules**2 // 4 / (modules - 1)


def spread_over(kernel: CountedKernel, modules: int, links: Links) -> CountedKernel:
    """The counts of one launch on `modules` modules, from those on one."""
    one = kernel.activity
    dram_bytes = one.transactions.get("dram", 0.0) * TRANSACTION_BYTES["dram"]
    local = 1.0 / modules if links.local_share is None else links.local_share
    link_bytes = (1.0 - local) * dram_bytes * mean_hops(modules, links.topology)
    time_s = max(one.time_s, link_bytes / links.bytes_per_s) / modules
    stalls = one.stalls + (one.issued + one.stalls) * (modules * time_s / one.time_s - 1.0)
    return replace(kernel, link_bytes=link_bytes, activity=replace(one, time_s=time_s, stalls=stalls))
