"""Wrong usage, impossible requests and files that are none: one line, and the status of the contract."""

import pytest

from tests.estimator.estimating import fails

WRONG_USAGE = [
    [],
    ["WORKLOAD"],
    ["--bundle", "BUNDLE"],
    ["WORKLOAD", "--bundle", "BUNDLE", "--freqs", ""],
    ["WORKLOAD", "--bundle", "BUNDLE", "--freqs", "current"],
    ["WORKLOAD", "--bundle", "BUNDLE", "--set", "num_sms"],
    ["WORKLOAD", "--bundle", "BUNDLE", "--set", "num_sms=1", "--set", "num_sms=2"],
    ["WORKLOAD", "--bundle", "BUNDLE", "--kernels", "-1"],
    ["WORKLOAD", "--bundle", "BUNDLE", "--kernels", "9" * 99],
    ["WORKLOAD", "--bundle", "BUNDLE", "--attention", "none"],
    ["WORKLOAD", "--bundle", "BUNDLE", "--colour", "red"],
    ["WORKLOAD", "--bundle", "BUNDLE", "--json", "--csv"],
    ["best", "WORKLOAD", "--bundle", "BUNDLE", "--chart", "energy"],
    ["bundles", "--freq", "1"],
    ["swep", "WORKLOAD", "--bundle", "BUNDLE"],
]


@pytest.mark.parametrize("arguments", WRONG_USAGE)
def test_wrong_usage_is_one_line_and_status_2(capsys, bundle, workload, arguments):
    named = [{"WORKLOAD": workload, "BUNDLE": bundle}.get(argument, argument) for argument in arguments]
    assert "--help" in fails(capsys, *named, status=2)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--freq", "0"], "0 MHz is outside"),
        (["--freq", "5000"], "5000 MHz is outside what a100-pcie-40gb can lock: 210 to 1410 MHz"),
        (["--freqs", "900,1500"], "1500 MHz is outside"),
        (["--power-cap", "251"], "power cap 251 W is above the limit of a100-pcie-40gb, 250 W"),
        (["--gpu", "a1000"], "unknown GPU 'a1000'; nearest: a100-sxm-80gb, a10; "),
        (["--set", "num_sm=132"], "known: num_sms"),
        (["--efficiency", "disk=0.5"], "no efficiency of 'disk' can be set; known: dram"),
        (["--attention", "flash"], "no attention to fuse"),
    ],
)
def test_impossible_request_is_one_line_and_status_1(capsys, bundle, workload, arguments, message):
    assert message in fails(capsys, workload, "--bundle", bundle, *arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--efficiency", "dram=nan"], "--efficiency"),
        (["--power-cap", "-5"], "--power-cap"),
        (["--host-launch-us", "1e30"], "x<=1000000.0"),
        (["--efficiency", "dram=1e-300"], "0.001<=x<=1.5"),
        (["--precision", "fp17"], "unknown precision 'fp17'; known: fp64"),
        (["--precision", ""], "empty name"),
        (["--precision", "bf16,fp32"], "`estimate sweep` takes several"),
    ],
)
def test_numbers_and_words_that_cannot_be_are_wrong_usage(capsys, bundle, workload, arguments, message):
    assert message in fails(capsys, workload, "--bundle", bundle, *arguments, status=2)
