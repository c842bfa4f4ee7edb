"""Wrong usage, impossible requests and files that are none: one line, and the status of the contract."""

import pytest

from tests.estimator.estimating import fails

WRONG_USAGE = [
    "",
    "WORKLOAD",
    "--bundle BUNDLE",
    "WORKLOAD --bundle BUNDLE --freqs ''",
    "WORKLOAD --bundle BUNDLE --freqs current",
    "WORKLOAD --bundle BUNDLE --set num_sms",
    "WORKLOAD --bundle BUNDLE --set num_sms=1 --set num_sms=2",
    "WORKLOAD --bundle BUNDLE --kernels -1",
    f"WORKLOAD --bundle BUNDLE --kernels {'9' * 99}",
    "WORKLOAD --bundle BUNDLE --attention none",
    "WORKLOAD --bundle BUNDLE --colour red",
    "WORKLOAD --bundle BUNDLE --json --csv",
    "best WORKLOAD --bundle BUNDLE --chart energy",
    "bundles --freq 1",
    "swep WORKLOAD --bundle BUNDLE",
]


@pytest.mark.parametrize("words", WRONG_USAGE)
def test_wrong_usage_is_one_line_and_status_2(bundle, workload, words):
    asked = words.replace("WORKLOAD", workload).replace("BUNDLE", bundle)
    assert "--help" in fails(asked or (), status=2)


@pytest.mark.parametrize(
    "words, status, message",
    [
        ("--freq 0", 1, "0 MHz is outside"),
        ("--freqs 900,5000", 1, "5000 MHz is outside what a100-pcie-40gb can lock: 210 to 1410 MHz"),
        ("--power-cap 251", 1, "power cap 251 W is above the limit of a100-pcie-40gb, 250 W"),
        ("--set num_sm=132", 1, "known: num_sms"),
        ("--efficiency disk=0.5", 1, "no efficiency of 'disk' can be set; known: dram"),
        ("--attention flash", 1, "no attention to fuse"),
        ("--efficiency dram=nan", 2, "--efficiency"),
        ("--power-cap -5", 2, "--power-cap"),
        ("--host-launch-us 1e30", 2, "x<=1000000.0"),
        ("--efficiency dram=1e-300", 2, "0.001<=x<=1.5"),
        ("--precision fp17", 2, "unknown precision 'fp17'; known: fp64"),
        ("--precision ''", 2, "empty name"),
        ("--out ''", 2, "empty"),
        ("--gpu-spec ''", 2, "empty"),
        ("--precision bf16,fp32", 2, "`estimate sweep` takes several"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(bundle, workload, words, status, message):
    assert message in fails(workload, f"--bundle {bundle}", words, status=status)


def test_a_bundle_that_cannot_be_read_is_refused_with_what_to_do(workload):
    assert "estimate bundles" in fails(workload, "--bundle ./tests")
    assert "empty" in fails(workload, "--bundle ''", status=2)
    assert len(fails(workload, "--bundle", "x" * 100_000)) < 3000
