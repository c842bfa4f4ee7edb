"""Groups of a campaign and tables of kernels: what is asked for is launched or named, and every word in a table means something."""

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from collector.campaigns.files import load_campaign
from estimator import load_gpu
from microbench import families
from microbench.families.catalogue import KERNELS
from microbench.kernel import Expectation, Kernel, Mode, Work
from microbench.loads.copies import COPIES
from microbench.loads.generated import LoadGroup, generated_loads
from tests.microbench.kernels import kernel_named

GPU = load_gpu("a100-pcie-40gb")
NAMES = ("ffma_k8_u64", "mma_f16", "vector_add_256")
COPY = "copy_host_to_device"


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_mode_beside_another_is_launched_or_named(mode, toolchain):
    group = LoadGroup(kernels=(*NAMES, COPY), modes=("full", mode))
    loads, skipped = generated_loads([group], GPU, toolchain)
    launched = {load.kernel.name for load in loads if load.operator.operator != COPY and load.launch.mode == mode}
    lacking = {name for name in NAMES if mode not in kernel_named(name).modes}
    assert launched == set(NAMES) - lacking
    lacking |= set() if mode == "full" else {COPY}
    reasons = [reason for reason in skipped if f"no launch mode {mode}" in reason]
    assert len(reasons) == bool(lacking)
    assert all(reason.startswith(tuple(lacking)) for reason in reasons)
    assert [skipped[reason] for reason in reasons] == [len(lacking)] * len(reasons)


def test_the_shipped_sweep_over_blocks_is_as_long_as_its_page_says(toolchain, repository):
    loads, skipped = generated_loads(load_campaign("blocks").instructions, GPU, toolchain)
    assert skipped == {}
    assert {load.launch.mode for load in loads} == {"block_sweep"}
    for text in ("docs/how-to/block-count.md", "configs/campaigns/blocks.toml"):
        assert f"{len(loads)} runs at one clock" in (repository / text).read_text()


def test_the_page_counts_the_kernels_and_names_the_copies(repository):
    text = (repository / "docs" / "microbenchmarks.md").read_text()
    assert f"{len(KERNELS)} kernels in {len({kernel.family for kernel in KERNELS})} families" in text
    assert all(f"`{load.name}`" in text for load in COPIES)


FIELDS_OF_TABLES = """each let count bytes_each scalars registers shared before body after macros lanes_may_idle share guarded max_threads
fixed templates start operands operations breaker every first last temporaries per_operation"""
KNOWN = {field.name for kind in (Kernel, Work, Expectation) for field in fields(kind)} | set(FIELDS_OF_TABLES.split())


def test_every_field_of_a_table_is_read_and_every_word_for_opcodes_names_an_opcode_or_a_list():
    for file in Path(families.__file__).parent.glob("*.toml"):
        table = tomllib.loads(file.read_text())
        for entry in (table.get("defaults", {}), *table.get("kernel", ()), *table.get("row", ())):
            assert set(entry) <= KNOWN, file
    expected = [kernel.expectation for kernel in KERNELS]
    words = {word for one in expected for word in (*one.opcodes, *one.companions, *one.uniform)}
    assert not [word for word in words if not word[0].isupper()]  # a name that no list has stays as it is
