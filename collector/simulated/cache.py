"""A simulated L2: the bytes of a launch that have to come from DRAM.

The touches of a launch are replayed panel by panel in the order of the waves of blocks.  A panel is
still in the L2 with a probability that falls with the bytes touched since its last use: the replacement is not
perfect, so the edge is soft.
"""

from collections.abc import Callable, Sequence

import numpy as np

from collector.simulated.plan import Traffic
from collector.simulated.profile import BoardProfile
from estimator.vocabulary.quantities import IntArray


def resident_share(profile: BoardProfile, distance_bytes: float) -> float:
    """Share of a panel that is still in the L2 after `distance_bytes` of other touches."""
    edge: float = (distance_bytes / (profile.memory.l2_usable_share * profile.spec.l2_bytes)) ** profile.memory.l2_edge
    return 1.0 / (1.0 + edge)


def streamed_traffic(profile: BoardProfile, read_bytes: float, write_bytes: float, reread_bytes: float) -> Traffic:
    """DRAM bytes of a kernel with one pass over its operands; `reread_bytes` are second passes that left the L2."""
    return _traffic(read_bytes, reread_bytes, write_bytes, resident_share(profile, read_bytes + write_bytes))


def _traffic(read_bytes: float, reread_bytes: float, write_bytes: float, kept: float) -> Traffic:
    """DRAM bytes of a launch; kept: share of its operands and results that the launch before left in the L2."""
    return {
        "warm": read_bytes * (1.0 - kept) + reread_bytes + write_bytes * (1.0 - kept),
        "cold": read_bytes + reread_bytes + write_bytes,
    }


def replayed_traffic(
    profile: BoardProfile,
    *,
    panels: Sequence[tuple[Callable[[IntArray], IntArray], float]],
    compulsory_bytes: float,
    loaded_bytes: float,
    write_bytes: float,
    blocks: int,
    slots: int,
) -> Traffic:
    """DRAM bytes of a kernel whose blocks share operand panels.

    panels: for each operand, the panel that each block needs, as a function of its number in launch order, and the size of a panel.
    `compulsory_bytes` is the size of all operands, `loaded_bytes` the bytes that the blocks of a launch load from the L2.
    """
    replayed = min(blocks, 40 * slots)  # waves replayed one by one; a longer launch repeats their pattern
    touched = refetched = 0.0
    last_use: list[dict[int, float]] = [{} for _ in panels]
    for first in range(0, replayed, slots):
        wave = np.arange(first, min(first + slots, replayed))
        for seen, (panel_of, size) in zip(last_use, panels, strict=True):
            for key in np.unique(panel_of(wave)).tolist():
                before = seen.get(key)
                if before is not None:
                    refetched += size * (1.0 - resident_share(profile, touched - before))
                touched += size
                seen[key] = touched
    repeats = blocks / replayed
    # share of the hits within a wave that are lost because blocks drift apart
    drift = 0.01 * max(0.0, loaded_bytes - touched * repeats) * (1.0 - resident_share(profile, loaded_bytes))
    again = min(refetched * repeats + drift, max(0.0, loaded_bytes - compulsory_bytes))
    return _traffic(compulsory_bytes, again, write_bytes, resident_share(profile, compulsory_bytes + again + write_bytes))
