"""Grids of kernels, screened: from a user's table, or from the sweeps over blocks of `collect`.

A table has a row for each launch of a kernel with a number of blocks.  `kernel`, `block_threads`, `blocks` and `latency_s` are required;
`gpu`, `blocks_per_sm`, `power_w` or `energy_j`, `power_std_w`, `idle_w`, `sm_clock_mhz` and `flop_per_block` are optional.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from collector.dataset.schema import UNUSABLE
from estimator.vocabulary.gpu import GpuSpec
from fitter.rows.columns import BlockRows, Selection, compacted
from fitter.rows.kernel_table import AT_LIMIT_SHARE
from fitter.rows.screening import Screen, first_known
from fitter.rows.tables import Table

NEEDED: Final = ("kernel", "block_threads", "blocks", "latency_s")
NUMBERS: Final = (
    "block_threads", "blocks_per_sm", "blocks", "latency_s", "power_w", "power_std_w", "idle_w", "sm_clock_mhz", "flop_per_block",
)  # fmt: skip
"""Columns of numbers; unknown ones are nan."""

COLUMNS: Final = frozenset({"kernel", "gpu", "energy_j", *NUMBERS})
"""Columns that are read."""

SWEEP: Final = "block_sweep"
"""Launch mode of such rows in a kernel dataset."""

WARP_LANES: Final = 32
"""Threads of a warp."""

REJECTS: Final = UNUSABLE | {"clock_varied", "throttled"}
"""Flags that make a measured row unusable for a grid."""


def read_block_table(table: Table, gpu: GpuSpec | None = None) -> Selection:
    """The grids of a table, or of the sweeps of a kernel dataset, and the rejected rows.

    gpu: the GPU to keep, also the GPU of a table without such a column.
    """
    swept = bool(table.marked(SWEEP, "launch_mode").any())
    screen = Screen(table, gpu, repeated=not swept)
    table = screen.table
    if swept:
        screen.reject_flags(REJECTS)
        frame = table.frame.assign(
            kernel=table.texts("operator"),
            block_threads=table.products("block"),
            blocks=table.products("grid"),
            idle_w=table.numbers("idle_before_w"),
            sm_clock_mhz=table.numbers("sm_clock_measured_mhz"),
        )
        table = screen.table = replace(table, frame=frame)
    kernel = np.array(table.texts("kernel"), dtype=object)
    screen.reject(kernel == "", "UNKNOWN_OPERATOR", "a kernel without a name")
    screen.reject_limits((*NUMBERS, "energy_j"))
    screen.clocks("sm_clock_mhz")
    numbers = {name: table.numbers(name) for name in NUMBERS}
    numbers["power_w"] = first_known(numbers["power_w"], table.numbers("energy_j") / numbers["latency_s"])
    screen.reject(numbers["idle_w"] > numbers["power_w"], "BAD_POWER", "power_w is below idle_w")
    limit_w = screen.of_gpu(lambda spec: spec.power_limit_w)
    screen.reject_power(numbers["power_w"], limit_w)
    screen.reject(numbers["power_w"] >= AT_LIMIT_SHARE * limit_w, "ABOVE_LIMIT", "at the power limit the clock falls", power=True)
    screen.whole = np.where(screen.whole < 0, screen.power, screen.whole)  # a model needs the power of all its grids
    # Registers and shared memory may allow fewer blocks than threads do; only the data can state this.
    fitting = screen.of_gpu(lambda spec: spec.warps_per_sm * WARP_LANES) // numbers["block_threads"]
    numbers["blocks_per_sm"] = first_known(numbers["blocks_per_sm"], np.maximum(fitting, 1.0))
    rows = BlockRows(kernel=kernel, **numbers, **screen.places())  # type: ignore[arg-type]
    return Selection(blocks=compacted(rows, screen.kept()), rejected=screen.rejected())
