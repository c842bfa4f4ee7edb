"""Groups of a campaign: what is asked for is launched, or named among what is not."""

from typing import get_args

import pytest

from collector.campaigns.files import load_campaign
from estimator.vocabulary.specifications import load_gpu
from microbench.families import kernel_named
from microbench.kernel import Mode
from microbench.loads.generated import generated_loads
from microbench.loads.groups import LoadGroup

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
        assert f"{len(loads)} runs at one clock" in (repository / text).read_text(encoding="utf-8")
