"""Groups of generated kernels and copies: what they name, what of them cannot be, and what a board without an assembler still runs."""

from pathlib import Path

import pytest

from collector.campaigns.files import campaign_from_document
from collector.errors import CampaignError
from estimator import load_gpu
from microbench.loads.copies import COPIES
from microbench.loads.generated import LoadGroup, generated_loads
from microbench.toolchain.compile import Toolchain
from tests.collector.campaigns import ONE_SOFTMAX, SHORT_HEAD
from tests.words import answer, one_line, refused, told

BOARD = "a100-pcie-40gb"
WGMMA_F16 = ("wgmma_f16_n64", "wgmma_f16_n128", "wgmma_f16_n256")


@pytest.mark.parametrize(
    "group, complaint",
    [
        ({"kernels": ["ffma*"], "modes": ["half"]}, r"\.modes\[0\] = 'half' is unknown; known: full, sm_sweep"),
        ({"kernels": ["ffma*"], "level": "O9"}, r"\.level = 'O9'"),
        ({"kernels": ["ffma"]}, r"\.kernels has no generated kernel 'ffma'; `collect kernels` lists them"),
        ({"kernels": ["ffma*"], "without": ["*"]}, r"\.without = \['\*'\] leaves none of the kernels"),
        ({"kernels": ["copy_*"], "modes": ["sm_sweep"]}, " asks for what none has: copy_host_to_device: no mode sm_sweep"),
        ({"kernels": ["copy_peer"], "pattern": "zero"}, " asks for what none has: copy_peer: no pattern zero; there is random"),
    ],
)
def test_a_group_that_names_nothing_that_can_be_is_refused_with_its_path(group, complaint):
    with one_line(CampaignError, r"^test: instructions\[1\]" + complaint):
        campaign_from_document({"name": "x", "instructions": [{"kernels": ["empty_loop"]}, group]}, "test")


@pytest.mark.parametrize("way", [{"modes": ("sm_sweep",)}, {"pattern": "zero"}, {"level": "O0"}], ids=lambda way: next(iter(way)))
def test_copies_beside_kernels_are_left_out_by_name_where_they_cannot_be_as_asked(way, toolchain):
    asked = LoadGroup(kernels=("ffma_k8_u64", "copy_*"), **way)
    loads, skipped = generated_loads([asked], load_gpu(BOARD), toolchain)
    assert {load.operator.operator for load in loads} == {"ffma_k8_u64"}
    ((reason, count),) = skipped.items()
    assert (reason.partition(",")[0], count) == (COPIES[0].name, len(COPIES)), "said once"
    both, _ = generated_loads([LoadGroup(kernels=("copy_*",)), asked], load_gpu(BOARD), toolchain)
    assert both == (*loads, *COPIES)


def test_copies_need_no_assembler():
    nowhere = Toolchain(ptxas=Path("/none"), nvdisasm=Path("/none"), ptxas_version="")
    some = LoadGroup(kernels=("copy_*",), without=("copy_d*", "copy_peer"))
    assert generated_loads([some], load_gpu(BOARD), nowhere) == (COPIES[:1], {})


def test_a_gpu_that_nothing_is_assembled_for_runs_the_rest_of_a_campaign(tmp_path):
    """sm_70, which a disassembler of CUDA 13.1 and later does not read: copies and library kernels are measured, the others named."""
    campaign = tmp_path / "mixed.toml"
    names = ("ffma_k8_u64", "l2_stream", "mma_*", "copy_*", "host_read")
    campaign.write_text(f"{SHORT_HEAD}\n[[instructions]]\nkernels = {list(names)}\n{ONE_SOFTMAX}", encoding="utf-8")
    words = f"--campaign {campaign} --gpu sim:v100-pcie-32gb --freqs current --dry-run".split()
    plan = answer(*words)
    assert plan["kernels"] == {"instruction": len(COPIES), "softmax": 1}
    ((reason, count),) = plan["skipped"].items()
    assert reason.startswith("ffma_k8_u64, ")
    assert f" and {count - 3} more: sm_70 needs ptxas and nvdisasm of a CUDA 12 toolkit" in reason
    campaign.write_text(f'{SHORT_HEAD}\n[[instructions]]\nkernels = ["ffma_k8_u64"]\n', encoding="utf-8")
    refused(1, "has no kernel that this board runs (ffma_k8_u64: sm_70 needs ptxas", *words)


def test_the_list_names_what_a_campaign_takes_and_how():
    listed = answer("kernels")
    assert len({one["name"] for one in listed}) == len(listed)
    for one in listed:  # each name by itself, in each of its ways, is a group that is not refused
        group = {"kernels": [one["name"]], "modes": one["modes"], "pattern": one["patterns"][0], "level": one["levels"][-1]}
        campaign_from_document({"name": "x", "instructions": [group]}, "test")


def test_the_list_goes_by_family():
    out, _ = told("kernels --families wgmma_f16,copy")
    assert [line.split()[0] for line in out.splitlines()] == ["name", *WGMMA_F16, *(copy.name for copy in COPIES)]
    for families in (" ,", "ffam"):
        refused(2, "no family is named", "kernels", "--families", families)
