"""Generated kernels of a campaign: which ones, assembled, and the order in which they are measured."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from collector.campaigns.files import CampaignSpec
from collector.campaigns.measurement import Point
from collector.errors import CampaignError
from estimator.gpu import GpuSpec
from microbench.errors import MicrobenchError
from microbench.loads.copies import CopyLoad, copy_loads
from microbench.loads.generated import FAMILY, GeneratedLoad, generated_loads
from microbench.toolchain.compile import user_cache

Load = GeneratedLoad | CopyLoad

ROW_ID_DIGITS: Final = 16


def campaign_loads(
    spec: CampaignSpec, families: Sequence[str], gpu: GpuSpec | None, seed: int, remark: Callable[[str], None] = lambda text: None
) -> tuple[tuple[Load, ...], dict[str, int]]:
    """The generated kernels of a campaign, assembled, and its copies; and what cannot run here.

    Machine code is kept from one campaign to the next (`user_cache`); `remark` is told where it cannot be.  Raises CampaignError where
    the assembler is missing, and says what to install.
    """
    if not spec.instructions or (families and FAMILY not in families):
        return (), {}
    if gpu is None:
        raise CampaignError(f"campaign {spec.name} has generated kernels; they are planned for a GPU that is known")
    try:
        loads, refused = generated_loads(spec.instructions, gpu, None, seed, user_cache(), remark)
    except MicrobenchError as error:
        raise CampaignError(f"campaign {spec.name}: {error}") from error
    return (*loads, *copy_loads(spec.instructions)), refused


def load_points(
    spec: CampaignSpec, loads: Sequence[Load], clocks_mhz: tuple[float | None, ...], seed: int, gpu_uuid: str
) -> tuple[Point, ...]:
    """Generated kernels in random order, block by block at every clock; each is preceded by the board at rest.

    Its energy is what it draws beyond that, so that rest and run share the temperature.
    """
    random = np.random.default_rng(np.random.SeedSequence([seed, len(loads), 1]))
    order = random.permutation(len(loads))
    points = []
    for start in range(0, len(loads), spec.kernels_per_block):
        for clock_index in random.permutation(len(clocks_mhz)):
            for index in random.permutation(order[start : start + spec.kernels_per_block]):
                points.append(_point(spec, loads[index], clocks_mhz[clock_index], seed, gpu_uuid))
    return tuple(points)


def _point(spec: CampaignSpec, load: Load, clock: float | None, seed: int, gpu_uuid: str) -> Point:
    """A point with its row id: the digest of everything that tells it from others."""
    described = json.dumps([gpu_uuid, spec.digest, seed, FAMILY, *load.identity(), clock], separators=(",", ":"))
    return Point(
        row_id=hashlib.sha256(described.encode()).hexdigest()[:ROW_ID_DIGITS],
        operator=load.operator,
        l2_state="warm",
        sm_clock_mhz=clock,
        trial=0,
        seed=seed,
        idle_before=True,
        load=load,
    )
