"""Energy and rate of what crosses a link: out of rows into a bundle's section and back; runs that are left out are said."""

import math
from dataclasses import replace

import numpy as np
import pytest

from estimator import load_gpu
from estimator.vocabulary.frozen import FrozenMapping
from fitter.bundle.sections import prior_bundle
from fitter.errors import CalibrationError
from fitter.instructions.display import bundle_energies, instruction_tables
from fitter.instructions.section import fitted_rows, instruction_section, link_energies
from fitter.rows.columns import InstructionRows, Selection
from tests.fitter.test_instruction_rows import ROW, made_rows, read_rows

GPU = load_gpu("a100-pcie-40gb")
OF_KERNELS = ("loop_", "active_", "grid_", "iterations", "launch_mode", "unroll")
COPY = {
    **{name: value for name, value in ROW.items() if not name.startswith(OF_KERNELS)},
    "operator": "copy_host_to_device", "precision": "none", "instruction": "copy engine", "chains": None, "assembler": None,
    "link": "host", "link_bytes": 1e9, "latency_s": 0.04, "power_w": 70.0, "idle_before_w": 45.0,
}  # fmt: skip


def rows_of(*given_rows):
    rows, rejected = read_rows(*({**row, "row_id": str(number)} for number, row in enumerate(given_rows)))
    assert rejected == []
    return rows.rows


def test_a_byte_costs_what_the_board_draws_beyond_rest_while_it_crosses():
    size, latency_s, power_w = 3e8, 0.02, 110.0
    rows = InstructionRows(rows=rows_of({**COPY, "link_bytes": size, "latency_s": latency_s, "power_w": power_w}))
    one = link_energies(rows)["copy_host_to_device"]
    assert one.bytes_per_s == pytest.approx(size / latency_s)
    assert one.j_per_byte == pytest.approx((power_w - 45.0) * latency_s / size)
    assert one.std_j == pytest.approx(0.2 * latency_s / size)
    assert link_energies(rows, 0.05)["copy_host_to_device"].std_j >= 0.05 * one.j_per_byte
    more = rows_of(*({**COPY, "link_bytes": size, "latency_s": latency_s, "power_w": power_w + watt} for watt in (0.0, 2.0, 4.0)))
    mean = link_energies(InstructionRows(rows=more))["copy_host_to_device"]
    assert (mean.runs, mean.j_per_byte) == (3, pytest.approx((power_w - 43.0) * latency_s / size))
    assert mean.std_j == pytest.approx(2.0 * latency_s / size / math.sqrt(3))


PLAIN = made_rows().rows[:12]
"""As few runs as suffice for a regression."""


def selected(*rows):
    return Selection(instructions=InstructionRows(rows=rows))


def test_the_section_has_the_links_and_the_regression_has_not():
    copies = rows_of(COPY, {**ROW, "operator": "host_read", "link": "host", "link_bytes": 1e8, "power_w": 90.0})
    single = replace(PLAIN[0], mode="single")
    unrested = replace(PLAIN[1], idle_w=math.nan)
    rows = InstructionRows(rows=(*PLAIN, *copies, single, unrested))
    assert np.flatnonzero(~fitted_rows(rows, GPU)).tolist() == [12, 13, 14]
    section, warnings = instruction_section(selected(*rows.rows), GPU)
    assert warnings == ()
    assert set(section["links"]) == {"copy_host_to_device", "host_read"}
    without, _ = instruction_section(selected(*PLAIN, single, unrested), GPU)
    assert "links" not in without
    assert without["values"] == section["values"]
    links = instruction_tables(replace(prior_bundle(GPU), instruction_energies=FrozenMapping(section)))[-1]
    shown = {row[0]: row[2:5] for row in links.rows}
    assert shown["copy_host_to_device"] == pytest.approx((25.0, 1000.0, 51.0), rel=0.01)


@pytest.mark.parametrize("beside", [0, 1, 11])
def test_links_need_no_regression(beside):
    copies = rows_of(COPY, {**COPY, "operator": "copy_device_to_host"})
    section, remarks = instruction_section(selected(*PLAIN[:beside], *copies), GPU)
    whole, _ = instruction_section(selected(*PLAIN, *copies), GPU)
    assert section == {"links": whole["links"]}
    assert [remark.partition(" runs")[0] for remark in remarks] == [f"no instruction energies: {beside}"] * bool(beside)
    bundle = replace(prior_bundle(GPU), instruction_energies=FrozenMapping(section))
    assert bundle_energies(bundle) is None
    (links,) = instruction_tables(bundle)
    assert [row[0] for row in links.rows] == ["copy_device_to_host", "copy_host_to_device"]
    with pytest.raises(CalibrationError, match="instruction energies need 12"):
        instruction_section(selected(*PLAIN[:11]), GPU)
