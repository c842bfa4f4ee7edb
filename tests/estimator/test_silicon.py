"""Power that was not measured: what a board's silicon says agrees with boards that were measured."""

from dataclasses import replace

import numpy as np
import pytest

from estimator import Workload, estimate, load_bundle, load_gpu
from estimator.bundle.content import group_coefficients
from estimator.engine.board import open_board
from estimator.engine.kernel_table import bundle_times
from estimator.engine.prediction import prepare
from estimator.model.power import POWER_TERMS, carried_factors
from estimator.model.silicon import energy_factors, usual_rest_w, voltage_ratios
from estimator.vocabulary.gpu import ClockTable
from estimator.vocabulary.specifications import gpu_names
from tests.estimator.synthetic import known_bundle, matmul, tables_of

A100, H100 = load_gpu("a100-pcie-40gb"), load_gpu("h100-sxm")

AWAKE_W = {"a100-pcie-80gb": 46, "h200-sxm": 121, "b200-sxm": 190, "l40s": 101, "l4": 27.5, "t4": 25.5, "a40": 74, "v100-pcie-32gb": 38}
"""Rest power of boards with a context [W]: medians of published nvidia-smi tables and logs, clocks high or unknown."""


def test_the_usual_curve_lies_near_the_voltage_of_measured_boards():
    for name in ("a100-pcie-40gb", "a100-sxm-80gb"):
        gpu = load_gpu(name)
        clock = gpu.clocks_mhz()
        measured, usual = (voltage_ratios(gpu, table, None).at(clock) for table in (gpu.voltage_v, None))
        assert np.abs(usual / measured - 1.0).max() < 0.08


def test_rest_power_tells_the_voltage():
    assert voltage_ratios(A100, None, A100.idle_w).at(np.array([1410.0]))[0] == pytest.approx(
        voltage_ratios(A100, A100.voltage_v, None).at(np.array([1410.0]))[0], rel=0.04
    )
    ratio = voltage_ratios(H100, None, H100.idle_w).at(np.array([500.0, 1830.0]))
    assert ratio == pytest.approx([1.0, 1.4], abs=0.06)
    flat = ClockTable(sm_clock_mhz=(300.0, 1000.0), value=(50.0, 50.0))  # a table that does not rise tells nothing: the usual curve
    assert voltage_ratios(H100, None, flat).value[-1] > 1.3


def test_a_single_reading_scales_rest_power():
    gpu = replace(H100, idle_w=None)
    clocks = gpu.clocks_mhz()
    read = ClockTable(sm_clock_mhz=(1500.0,), value=(60.0,))
    rule, scaled = (replace(tables_of(gpu), voltage_v=None, idle_w=one).rest_w(clocks) for one in (None, read))
    assert scaled / rule == pytest.approx(60.0 / np.interp(1500.0, clocks, rule))


def test_a_board_with_a_higher_voltage_costs_more_in_the_core_alone():
    raised = ClockTable(sm_clock_mhz=A100.voltage_v.sm_clock_mhz, value=tuple(1.1 * volt for volt in A100.voltage_v.value))
    found = carried_factors(tables_of(A100), 3.0, tables_of(replace(A100, voltage_v=raised)), 3.0)
    assert found == pytest.approx({term: 1.0 if term in ("dram", "active") else 1.1**3 for term in found})
    inferred = ClockTable(sm_clock_mhz=(900.0, 1410.0), value=(1.0, 1.2))  # from power: its scale is unknown
    assert voltage_ratios(A100, inferred, None).value == (1.0, 1.2)


@pytest.mark.parametrize("name", gpu_names())
def test_voltage_and_rest_power_never_fall_with_the_clock(name):
    gpu = load_gpu(name)
    clock = gpu.clocks_mhz()
    bare = replace(tables_of(gpu), voltage_v=None, idle_w=None)
    for point in (bare.at(clock), tables_of(gpu).at(clock)):
        assert (np.diff(point.voltage_ratio) >= 0.0).all()
        assert (np.diff(point.idle_w) >= 0.0).all()
    assert 0.05 < point.idle_w.max() / gpu.power_limit_w < 0.5


def test_the_rule_for_rest_power_lies_near_boards_that_were_read():
    for gpu in (A100, H100):
        clock = np.array(gpu.idle_w.sm_clock_mhz)
        ratio = tables_of(gpu).voltage_ratios.at(clock)
        assert np.abs(usual_rest_w(gpu, clock, ratio) / gpu.idle_w.at(clock) - 1.0).max() < 0.22
    for name, awake in AWAKE_W.items():
        gpu = replace(load_gpu(name), idle_w=None)
        rest = tables_of(gpu).rest_w(gpu.clocks_mhz())
        assert 0.8 * rest.min() < awake < 1.25 * rest.max(), name


def test_energies_carried_to_another_board_and_back_are_the_same():
    for name in gpu_names():
        one, other = tables_of(A100, 1410.0), tables_of(load_gpu(name), 900.0)
        there, back = carried_factors(one, 3.0, other, 2.0), carried_factors(other, 2.0, one, 3.0)
        assert {term: there[term] * back[term] for term in there} == pytest.approx(dict.fromkeys((*POWER_TERMS, "busy", "active"), 1.0))
    own = carried_factors(tables_of(A100), 3.0, tables_of(A100), 3.0)
    assert set(own.values()) == {1.0}


def test_each_difference_between_boards_moves_the_energies_that_it_concerns():
    def changed(**figures):
        return carried_factors(tables_of(A100), 3.0, tables_of(replace(A100, **figures)), 3.0)

    newer = changed(process="tsmc-4n")
    assert {term: value for term, value in newer.items() if value != 1.0} == dict.fromkeys(("tensor", "cuda", "sfu"), 0.62)
    assert {term for term, value in changed(num_sms=216).items() if value != 1.0} == {"busy"}
    wide = changed(tensor_flop_per_clock={**A100.tensor_flop_per_clock, "fp16": 4096.0})
    assert {term: value for term, value in wide.items() if value != 1.0} == {"tensor": 0.75}
    slow, whole = (energy_factors(load_gpu(name)) for name in ("l20", "l4"))
    assert slow["tensor"] == whole["tensor"]  # sold with half the rate, on the same units


def test_half_of_a_lambda_belongs_to_the_fitted_board():
    bundle = known_bundle(A100)
    group = replace(bundle.groups["gemm"], usual={"math": 4.0 * bundle.groups["gemm"].coefficients["math"]})
    bundle = replace(bundle, groups={**bundle.groups, "gemm": group})
    own, other = (group_coefficients(bundle, replace(A100, name="x", compute_capability=name))["gemm"] for name in ("8.0", "8.6"))
    assert own == group.coefficients
    assert other == pytest.approx(own | {"math": 2.0 * own["math"]})


@pytest.mark.parametrize("name, carried", [("l40s", True), ("rtx-4090", True), ("l4", True), ("rtx-a6000", False), ("h100-sxm", False)])
def test_the_same_kernels_keep_their_corrections_on_other_boards(name, carried):
    bundle = load_bundle("l40s")
    products = tuple(matmul(m, n, k) for m in (1, 8, 512, 4096) for n, k in ((6144, 4096), (4096, 14336), (28672, 4096)))
    alone = {"sm_clock_mhz": np.full(len(products), 1500.0), "warm": np.zeros(len(products)), "known": None}
    model = Workload(name="x", model_family="x", operators=products, counts=(1.0,) * len(products))
    own, found = (
        [np.log(times.latency_s / times.equations_s), prepare([model], open_board(bundle, gpu=gpu)).log_correction]
        for gpu in (bundle.gpu, load_gpu(name))
        for times in [bundle_times(products, bundle, gpu, **alone)]
    )
    assert np.ptp(own, axis=1) == pytest.approx([0.6, 0.6], abs=0.4)
    assert np.array(found) == pytest.approx(np.array(own) * carried)


@pytest.mark.parametrize("bundle", ["a100-sxm-80gb", "h200-sxm", "l40s"])
@pytest.mark.parametrize("precision, stored", [("bf16", 2.0), ("int8_wo", 1.0), ("int4_wo", 0.5)])
def test_weights_are_read_no_faster_than_memory_gives_them(bundle, precision, stored):
    product = matmul(1, 65536, 16384, precision)
    workload, own = Workload(name="x", model_family="x", operators=(product,), counts=(1.0,)), load_bundle(bundle)
    for name in ("a40", "h100-pcie", "h20", "rtx-4090", own.gpu.name):
        gpu = replace(load_gpu(name), power_limit_w=1e4)
        (found,) = estimate(workload, own, gpu=gpu, host_launch_s=0.0)
        assert found.latency_s > stored * 65536 * 16384 / gpu.dram_bytes_per_s


@pytest.mark.parametrize(
    "rate, kind, kept", [(256, "8.9", 0.25), (512, "8.6", 0.5), (1024, "8.9", 1.0), (2048, "8.9", 1.0), (512, "7.5", 1.0)]
)
def test_tensor_cores_sold_with_a_lower_rate_lose_less_and_others_not(rate, kind, kept):
    bundle = known_bundle(A100)
    group = replace(bundle.groups["gemm"], coefficients={**bundle.groups["gemm"].coefficients, "math": 1.4}, usual={})
    changed = replace(A100, tensor_flop_per_clock={"bf16": float(rate)}, compute_capability=kind)
    found = group_coefficients(replace(bundle, groups={"gemm": group}), changed)["gemm"]
    assert found["math"] ** 2.6 - 1.0 == pytest.approx(kept**2.6 * (1.4**2.6 - 1.0))
    assert found["prologue"] == kept * group.coefficients["prologue"]
    assert found | {name: group.coefficients[name] for name in ("math", "prologue")} == group.coefficients
