"""A roofline beside our model: its laws, on made and on published workloads."""

from dataclasses import replace

import numpy as np
import pytest

from estimator import estimate, load_bundle, load_gpu, make_operator, read_workload, roofline_latency_s, write_workload
from estimator.questions.estimates import roofline_seconds
from tests.estimator.estimating import printed, question, run, tabled, unlimited
from tests.estimator.synthetic import convolution, matmul, transformer, workload_of

BUNDLE = load_bundle("a100-pcie-40gb-eager")
FREE = unlimited(BUNDLE)
A100 = BUNDLE.gpu
CLOCKS = (510.0, 900.0, 1410.0)


def published(shared_data):
    return sorted((shared_data / "energaizer" / "workloads").glob("*.json"))


def test_no_published_workload_is_faster_than_its_roofline_kernel_by_kernel(shared_data):
    for path in published(shared_data):
        workload = read_workload(path)
        ideal = roofline_seconds(workload, A100, np.array(CLOCKS))
        for i, own in enumerate(estimate(workload, FREE, sm_clock_mhz=CLOCKS)):
            assert (np.array([kernel.latency_s for kernel in own.kernels]) > ideal[:, i]).all(), (path.name, CLOCKS[i])
            assert own.latency_s > np.array(workload.counts) @ ideal[:, i]


def test_a_large_product_takes_its_flop_over_the_peak_and_a_copy_its_bytes_over_the_bandwidth():
    product = matmul(8192, 8192, 8192)
    copy = make_operator("copy", "contiguous", "bf16", elements=1e8, reads=1e8)
    seconds = roofline_seconds(workload_of(product, copy), A100, np.array([A100.sm_clock_max_mhz, A100.sm_clock_max_mhz / 2.0]))
    assert seconds[0] == pytest.approx([2 * 8192.0**3 / 312e12, 4 * 8192.0**3 / 312e12], rel=2e-3)  # 312 TFLOP/s, A100 data sheet
    assert seconds[1] == pytest.approx([2e8 * 2 / 1.555e12] * 2, rel=1e-3)  # 1555 GB/s


def test_it_runs_at_the_clock_that_the_power_limit_leaves():
    workload = transformer(4096, 2048, 12)
    own = estimate(workload, BUNDLE, sm_clock_mhz=CLOCKS)
    assert own[-1].sm_clock_mhz < 1410.0
    at_those = np.array(workload.counts) @ roofline_seconds(workload, A100, np.array([one.sm_clock_mhz for one in own]))
    assert roofline_latency_s(question(workload, BUNDLE, sm_clock_mhz=CLOCKS)) == pytest.approx(at_those)
    merged = workload_of(convolution(1), matmul(8 * 64 * 64, 64, 64))  # the convolution runs as this product
    assert roofline_latency_s(question(merged, BUNDLE)) < estimate(merged, BUNDLE)[0].latency_s
    foreign = workload_of(matmul(64, 64, 64, "fp8"))
    assert np.isnan(roofline_latency_s(question(foreign, BUNDLE, gpu=load_gpu("v100-pcie-32gb"))))


def test_a_comparison_with_a_roofline_needs_no_second_thing(tmp_path):
    file = tmp_path / "made_b2_s128.json"
    write_workload(replace(transformer(256, 512, 2), name="made_b2_s128"), file)
    words = ("compare", file, "--bundle a100-pcie-40gb-eager --freqs 900 --baselines --quiet")
    assert [line.split()[0] for line in run(words)[1].splitlines()[2:4]] == ["900", "roofline"]
    point = printed(words)["reference"]
    (row,) = tabled(words)
    assert point["latency_s"] > point["roofline_s"] == float(row["roofline_s"]) > 0.0
