"""Links of the simulated world: to the host over PCI Express, to another board over NVLink; copy engines and kernels that use them.

The figures are plausible for plumbing and statistics, not measurements.  Links are full duplex: what is sent does not slow what comes.
"""

from typing import Final

from collector.devices.errors import RunnerError
from collector.simulated.profile import BoardProfile, LinkProfile
from collector.simulated.scheduler import KernelTiming
from collector.simulated.silicon import JOULE_PER_PICOJOULE, LaunchEnergy
from estimator.vocabulary.gpu import GpuSpec
from microbench.loads.copies import CopyLoad

COPY_START_S: Final = 4e-6
"""A copy engine's time to begin one copy [s]."""

OWN_DRAM_SHARE: Final = 0.45
"""What a copy within the board reaches of the DRAM's bandwidth: each byte is read and written."""

ENGINE_PJ_PER_BYTE: Final = 6.0
"""A copy engine's own work [pJ/byte]."""


def link_rate(profile: BoardProfile, name: str) -> float:
    """What a link carries in one direction [byte/s].  Raises RunnerError for a peer that the board has not."""
    link = profile.link
    if name == "host":
        return link.host_bytes_per_s
    if link.peers < 1:
        raise RunnerError("needs the memory of another GPU; this simulated board reaches none ([link] peers = 0)")
    return link.peer_bytes_per_s


def link_latency_s(link: LinkProfile, name: str) -> float:
    """From asking for a word beyond the board to having it [s]."""
    return link.host_latency_s if name == "host" else link.peer_latency_s


def link_energy_j(link: LinkProfile, name: str, moved_bytes: float) -> float:
    """What this board spends on so many bytes that cross a link [J]; the other end's share is not its own."""
    each = link.host_pj_per_byte if name == "host" else link.peer_pj_per_byte
    return each * JOULE_PER_PICOJOULE * moved_bytes


def require_link(profile: BoardProfile, name: str, who: str) -> None:
    """Raises RunnerError, naming who wants it, where a board has no such link."""
    if name in ("host", "peer"):
        try:
            link_rate(profile, name)
        except RunnerError as error:
            raise RunnerError(f"{who}: {error}") from error


def copy_point(profile: BoardProfile, gpu: GpuSpec, load: CopyLoad) -> tuple[KernelTiming, LaunchEnergy]:
    """Time and energy of one copy: no SM works, the memory of this board is read or written, or both."""
    moved = float(load.host.bytes_moved)
    inside = load.link == "device"
    rate = OWN_DRAM_SHARE * gpu.dram_bytes_per_s if inside else link_rate(profile, load.link)
    through_dram = 2.0 * moved if inside else moved
    crossed = 0.0 if inside else link_energy_j(profile.link, load.link, moved)
    core = {
        "link": crossed + ENGINE_PJ_PER_BYTE * JOULE_PER_PICOJOULE * moved,
        "l2": through_dram * profile.energy.l2_pj_per_byte * JOULE_PER_PICOJOULE,
    }
    dram_j = through_dram * profile.energy.dram_pj_per_byte * JOULE_PER_PICOJOULE
    return KernelTiming(gpu_s=moved / rate + COPY_START_S, busy_share=0.0), LaunchEnergy(core_j=core, dram_j=dram_j, hidden_j=0.0)
