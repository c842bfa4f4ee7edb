"""Grids that a limit of the board slowed down are in no model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.dataset.schema import rows_to_table
from estimator.vocabulary.specifications import load_gpu
from fitter.blocks.section import block_section
from fitter.rows.block_table import read_block_table
from fitter.rows.columns import Selection
from fitter.rows.tables import Table
from tests.fitter.test_block_count import planted_s
from tests.fitter.test_instruction_rows import ROW

GPU = load_gpu("a100-pcie-40gb")
GRIDS = (108, 432, 864, 2160)


def selected(slowed: Sequence[int]) -> Selection:
    """A sweep of two kernels at 1410 MHz, of which the hot one was slowed down on some grids."""
    rows: list[dict[str, Any]] = []
    for kernel in ("hotspot_16", "vector_add_256"):
        for number, grid in enumerate(GRIDS):
            hot = kernel == "hotspot_16" and grid in slowed
            latency_s = float(planted_s(np.array([grid]))[0])
            name = {"row_id": f"{kernel}{number}", "operator": kernel, "launch_mode": "block_sweep", "latency_s": latency_s}
            size = {"grid_x": grid, "block_x": 256, "block_y": 1, "block_z": 1, "blocks_per_sm": 2}
            clocks = {"sm_clock_mhz": 1410.0, "sm_clock_measured_mhz": 1365.0 if hot else 1410.0}
            rows.append({**ROW, **name, **size, **clocks, "flags": ["throttled", "clock_off_target"] if hot else []})
    table = rows_to_table(rows, {})
    blocks, rejected = read_block_table(Table.of(table, Path("x.parquet")))
    return Selection(kernels=None, workloads=None, rejected=tuple(rejected), startups=(), datasets=(), notes=(), blocks=blocks)


@pytest.mark.parametrize("slowed", [(864,), (864, 2160), GRIDS])
def test_slowed_grids_are_in_no_model(slowed: tuple[int, ...]) -> None:
    selection = selected(slowed)
    section, remarks = block_section(selection, GPU)
    modelled = {entry["kernel"] for entry in section.values()}
    assert modelled == {"vector_add_256"} | ({"hotspot_16"} if len(GRIDS) - len(slowed) >= 3 else set())
    assert [row.detail for row in selection.rejected] == ["hotspot_16 at 1410 MHz"] * len(slowed)
    if len(slowed) == 2:
        assert remarks[0].startswith("no block-count model: hotspot_16 with 256 threads a block at 1410 MHz: 2 grids measured")
