"""Fits of kernels and runs: what they predict and say of themselves; of very few rows a useful bundle with an honest width."""

import json
from dataclasses import replace

import numpy as np
import pytest

from estimator import estimate, load_bundle, load_gpu
from estimator.bundle.files import bundle_from_document, save_bundle
from fitter.bundle.calibration import calibrate, few_power_warnings
from fitter.bundle.data_facts import board_knowledge, default_name, domain_of, environment_of
from fitter.bundle.drafts import draft_from_rows
from fitter.report.check import check_bundle
from fitter.rows.columns import UNKNOWN_GAIN_STD, join_rows, with_rejected
from fitter.rows.rejected import RejectedRow
from fitter.rows.selection import read_selection
from fitter.validate.predictions import predict_rows, single_kinds
from tests.estimator.bundle_example import VALIDATOR
from tests.estimator.synthetic import matmul, transformer
from tests.fitter.measured import PLANTED, kernel_rows, selection_of, spec, various_operators, various_workloads, workload_rows

NOISE = 0.02
SPEC = spec()


@pytest.fixture(scope="module")
def kernels_and_runs():
    kernels = kernel_rows(PLANTED, various_operators(90), noise=NOISE)
    return calibrate(selection_of(kernels, workload_rows(PLANTED, various_workloads(), noise=NOISE)), SPEC, seed=1)


def mape(rows, family, quantity):
    return float(np.mean([row[quantity]["mape"] for row in rows if row["family"] == family]))


def test_kernels_and_runs_together_predict_runs_they_have_not_seen(kernels_and_runs):
    assert mape(kernels_and_runs.errors, "workload", "latency") < 6
    assert mape(kernels_and_runs.errors, "workload", "power") < 6
    other = various_workloads()[3]
    wanted = estimate(other, PLANTED, sm_clock_mhz=900.0)[0]
    found = estimate(other, kernels_and_runs.bundle, sm_clock_mhz=900.0)[0]
    assert found.latency_s == pytest.approx(wanted.latency_s, rel=0.1)
    assert found.latency_s_std > 0


def test_the_bundle_obeys_the_schema_and_says_where_it_came_from(kernels_and_runs, tmp_path):
    bundle = kernels_and_runs.bundle
    save_bundle(bundle, tmp_path / "b.json")
    document = json.loads((tmp_path / "b.json").read_text())
    VALIDATOR.validate(document)
    assert any("power" in tier for tier in document["residuals"].values())
    assert document["errors"]
    assert bundle_from_document({**document, "digest": "sha256:x"}).groups == bundle.groups
    assert [dataset.name for dataset in bundle.provenance.datasets] == ["planted.csv", "runs.csv"]
    assert bundle.name == "a100-pcie-40gb"
    assert bundle.clocks_mhz == (900.0, 900.0)
    assert bundle.errors == kernels_and_runs.errors
    outlier = RejectedRow(source="planted.csv", row=3, reason="OUTLIER")
    bad_power = RejectedRow(source="planted.csv", row=4, reason="HISTORY", power_only=True)
    counted = with_rejected(kernels_and_runs.selection, (outlier, bad_power))
    assert (counted.datasets[0].used, counted.datasets[0].rejected) == (89, {"OUTLIER": 1})


def test_groups_without_rows_stand_at_their_priors_and_memory_kernels_learn_from_each_other():
    operators = various_operators(30)
    alone = calibrate(selection_of(kernel_rows(PLANTED, operators, noise=NOISE)), SPEC, holdout=0.0)
    assert alone.errors == ()
    for operator in operators:
        for name, value in operator.named_shape().items():
            domain = domain_of(alone.selection, {operator.family})[operator.family]
            assert domain[name][0] <= value <= domain[name][1]
    groups = alone.bundle.groups
    assert groups["copy"].coefficients["dram"] == groups["elementwise"].coefficients["dram"]
    assert groups["copy"].rows == 0
    attention = alone.bundle.groups["attention.prefill"]
    assert attention.rows == 0
    assert not any(attention.identified.values())
    assert all(std > 0 for std in attention.ln_std.values())
    assert alone.bundle.host.source.startswith("assumed")


@pytest.mark.parametrize("kind, unique", [("kernels", "operators"), ("workloads", "workloads")])
def test_the_order_in_which_rows_were_written_changes_nothing(kind, unique):
    made = {"kernels": (kernel_rows, various_operators(40)), "workloads": (workload_rows, various_workloads())}
    rows_of, run = made[kind]
    rows = rows_of(PLANTED, run, noise=NOISE)
    shuffled, index = rows.select(np.random.default_rng(4).permutation(len(rows))), f"{unique[:-1]}_index"
    values = getattr(shuffled, unique)
    turned = replace(shuffled, **{unique: values[::-1], index: len(values) - 1 - getattr(shuffled, index)})
    first, second = (calibrate(selection_of(**{kind: one}), SPEC, name="same", seed=2).bundle for one in (rows, turned))
    assert replace(first, provenance=second.provenance) == second


def measured(*metadata):
    """Some kernels, from data sets with this metadata."""
    selection = selection_of(kernel_rows(PLANTED, various_operators(6)))
    return replace(selection, datasets=tuple(replace(selection.datasets[0], files=(one,)) for one in metadata))


def test_measured_tables_of_the_board_come_before_its_specification_and_are_merged_in_any_order():
    names = ("sm_clock_mhz", "power_w", "std_w", "temperature_c")
    wide = [(510.0, 45.0, 0.2, None), (900.0, 50.0, 0.2, 40.0), (1410.0, 60.0, 0.2, 40.0), (1200.0, None, None, None)]
    first = {"idle": [dict(zip(names, row, strict=True)) for row in wide], "voltage": None, "simulated": True, "driver": "535"}
    second = {"idle": [dict(zip(names, (1410.0, 66.0, 0.4, 44.0), strict=True))], "voltage": None, "gpu": {"uuid": "GPU-1", "vbios": 3}}
    board = board_knowledge(measured(first, second), SPEC)
    assert board == board_knowledge(measured(second, first), SPEC)
    assert board.idle_w.at(np.array([510.0, 900.0, 1410.0])).tolist() == [45.0, 50.0, 63.0]
    assert board.voltage_v == SPEC.voltage_v
    assert environment_of(measured(first))["simulated"] == "true"
    assert [default_name(measured(one), SPEC) for one in (first, second)] == ["sim-a100-pcie-40gb", "a100-pcie-40gb"]


def test_a_table_measured_at_a_few_clocks_keeps_the_shape_of_the_specification_between_and_beyond_them():
    voltage = [{"sm_clock_mhz": clock, "voltage_v": volt, "std_v": 0.001} for clock, volt in ((510.0, 0.70), (900.0, 0.70), (1410.0, 0.90))]
    board = board_knowledge(measured({"voltage": voltage}), SPEC)
    usual = SPEC.voltage_v
    assert board.voltage_v.at(np.array([510.0, 900.0, 1410.0])) == pytest.approx([0.70, 0.70, 0.90])
    knee = np.array([1020.0, 1200.0])
    assert board.voltage_v.at(knee) == pytest.approx(usual.at(knee), rel=0.015)  # a straight line would lie 7 % above
    board = board_knowledge(
        measured({"voltage": voltage[1:2], "idle": [{"sm_clock_mhz": None, "sm_clock_measured_mhz": 899.8, "power_w": 50.0}]}), SPEC
    )
    far = np.array([300.0, 1410.0])
    assert board.voltage_v.at(far) == pytest.approx(usual.at(far) * 0.70 / usual.at(900.0))
    assert board.rest_w(far) == pytest.approx(SPEC.idle_w.at(far) * 50.0 / SPEC.idle_w.at(900.0), rel=0.01)


def test_an_unknown_gain_of_the_sensor_widens_all_coefficients_of_power_and_a_meter_narrows_them():
    selection = selection_of(kernel_rows(PLANTED, various_operators(30), noise=0.02))
    metered = {"sensor": {"gain": 0.95, "gain_std": 0.0095, "offset_w": -1.0}}
    known = replace(selection, datasets=(replace(selection.datasets[0], files=(metered,)),))
    assert known.gain_std == pytest.approx(0.01)
    assert selection.gain_std == UNKNOWN_GAIN_STD
    wide, narrow = (calibrate(one, SPEC, holdout=0.0).bundle.power for one in (selection, known))
    assert wide.capacitance_f == narrow.capacitance_f
    for term, farad in wide.capacitance_f.items():
        added = (wide.capacitance_std_f[term] ** 2 - narrow.capacitance_std_f[term] ** 2) / (UNKNOWN_GAIN_STD**2 - 0.01**2)
        assert added == pytest.approx(farad**2, rel=1e-6), term


def test_runs_do_not_move_groups_that_they_do_not_use():
    fp32 = [replace(operator, precision="fp32") for operator in various_operators(60)]
    kernels = kernel_rows(PLANTED, fp32, noise=NOISE)
    runs = workload_rows(PLANTED, various_workloads(), noise=NOISE)
    tables = board_knowledge(selection_of(kernels, runs), SPEC)
    alone = draft_from_rows(kernels, None, SPEC, tables, 0)
    both = draft_from_rows(kernels, runs, SPEC, tables, 0, alone.kernel_fit)
    assert both.bundle.groups["gemm.linear.fp32"] == alone.bundle.groups["gemm.linear.fp32"]
    assert both.bundle.groups["gemm"].coefficients != alone.bundle.groups["gemm"].coefficients
    assert both.bundle.groups["gemm"].coefficients["math"] == pytest.approx(PLANTED.groups["gemm"].coefficients["math"], rel=0.2)


def test_a_kind_with_one_kernel_is_held_out_and_causes_no_warning():
    alone = matmul(512, 512, 512, operator="bmm", batch=8)
    rows = kernel_rows(PLANTED, [*various_operators(30), *[alone] * 6], noise=NOISE)
    slower = np.array([5.0 if operator == alone else 1.0 for operator in rows.row_operators()])
    found = calibrate(selection_of(replace(rows, latency_s=slower * rows.latency_s)), SPEC, seed=0)
    assert {label[2] for label in single_kinds(found.selection)} == {"bmm"}
    assert any(row["operator"] == "bmm" and row["latency"] is not None and row["latency"]["mape"] > 50.0 for row in found.errors)
    assert not any("bmm" in warning for warning in found.warnings)


GPU_NAME = "a100-pcie-40gb"
WORKLOAD = transformer(4096, 768, 12, name="small", family="small")
"""Paced by the GPU: its width is that of the kernels, not of a host."""

LEAST_STD = 0.05
"""No fit of one kernel knows a whole model better than this [relative]."""


def random_subsets(rows, seed):
    """Few rows of all families, of one family, and of one kernel measured over and over; some with power."""
    rng = np.random.default_rng(seed)
    families = np.array([rows.operators[i].family for i in rows.operator_index])
    for count in (1, 2, 5, 12):
        yield rows.select(rng.choice(len(rows), count, replace=False))
        own = np.flatnonzero(families == rng.choice(np.unique(families)))
        yield replace(some := rows.select(rng.choice(own, count)), power_w=rng.uniform(90.0, 240.0, len(some)))
        yield rows.select(np.repeat(rng.integers(len(rows)), count))


def bundle_of(selection, folder):
    """Fit, save, load, check and estimate; the relative standard deviation of the estimate."""
    calibration = calibrate(selection, load_gpu(GPU_NAME), seed=0)
    save_bundle(calibration.bundle, folder / "few.json")
    bundle = load_bundle(str(folder / "few.json"))
    check_bundle(bundle, selection)
    answer = estimate(WORKLOAD, bundle)[0]
    assert np.isfinite(answer.latency_s)
    assert answer.latency_s > 0
    return answer.latency_s_std / answer.latency_s


def test_few_rows_of_any_kind_give_a_bundle_that_knows_how_little_it_knows(shared_data, tmp_path):
    tables = (read_selection([shared_data / "neusight" / f"{name}_train.csv"], GPU_NAME).kernels for name in ("vector", "bmm"))
    for rows in random_subsets(join_rows([*tables]), seed=3):
        assert bundle_of(selection_of(rows), tmp_path) > LEAST_STD


def test_repetitions_of_a_table_change_neither_answers_nor_intervals_and_a_failed_one_is_named():
    rows = kernel_rows(PLANTED, various_operators(24), noise=0.05)
    many = rows.select(np.repeat(np.arange(24), 15))
    scatter = np.exp(0.001 * np.random.default_rng(0).standard_normal(len(many)))
    many = replace(many, row=np.arange(1, len(many) + 1), latency_s=many.latency_s * scatter, power_w=many.power_w * scatter)
    failed = replace(many, latency_s=many.latency_s * np.where(many.row == 21, 100.0, 1.0))
    named = calibrate(selection_of(failed), SPEC, holdout=0.0).selection.rejected
    assert [(one.reason, one.row) for one in named] == [("OUTLIER", 21)]
    once, often = (calibrate(selection_of(one), SPEC) for one in (rows, many))
    found = [predict_rows(one.bundle, rows) for one in (once, often)]
    for column, ratio in {"predicted_latency": 0.02, "predicted_power": 0.02, "std_latency": 0.2, "std_power": 0.2}.items():
        assert found[1][column].to_numpy() == pytest.approx(found[0][column].to_numpy(), rel=ratio)
    apart = replace(many, sources=("a", "b", "c"), source_index=np.arange(len(many)) % 3)  # of three files
    assert calibrate(selection_of(apart), SPEC).errors == often.errors


PRODUCTS = various_operators(10)[::3]


@pytest.mark.parametrize(
    "kernels, factors, warned",
    [
        (PRODUCTS, (1, 1, 1, 1), ""),
        (PRODUCTS, (1, 30, 1, 30), "latency of rows left out of the fit"),
        (PRODUCTS[:1] * 2, (1, 1.1), ""),
        (PRODUCTS[:1] * 2, (1, 30), "latency of the fitted rows themselves"),
    ],
)
def test_few_rows_that_the_fit_misses_by_far_are_a_warning(kernels, factors, warned):
    rows = kernel_rows(PLANTED, kernels)
    found = calibrate(selection_of(replace(rows, latency_s=rows.latency_s * factors)), load_gpu(GPU_NAME))
    told = [line.partition(" is poorly described")[0] for line in found.warnings if "poorly" in line]
    assert told == [warned] * bool(warned)


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_a_failed_run_is_named_and_the_others_predict_as_without_it(factor):
    rows = workload_rows(PLANTED, various_workloads(), noise=NOISE)
    place = np.arange(len(rows)) == int(rows.latency_s.argmax())
    failed = calibrate(selection_of(None, replace(rows, latency_s=rows.latency_s * np.where(place, factor, 1.0))), SPEC)
    assert [line.partition("? ")[2] for line in failed.warnings if "fail?" in line] == [f"runs.csv row {rows.row[place][0]}"]
    first, *_ = various_workloads()
    answers = [estimate(first, one.bundle, sm_clock_mhz=900.0)[0].latency_s for one in (failed, calibrate(selection_of(None, rows), SPEC))]
    assert answers[0] == pytest.approx(answers[1], rel=0.1)


def test_fewer_energies_never_give_a_narrower_power(shared_data):
    runs, spreads, warnings = read_selection([shared_data / "energaizer" / "a10_900mhz.csv"]).workloads.select(np.arange(12)), [], []
    for count in (0, 1, 3, 9):
        some = replace(runs, energy_j=np.where(np.arange(12) < count, runs.energy_j, np.nan))
        found = calibrate(selection_of(None, some), load_gpu("a10"), holdout=0.2)
        warnings.append(" ".join(found.warnings))
        if count:
            answer = estimate(transformer(512, 768, 12, name="new", family="new"), found.bundle)[0]
            spreads.append(answer.power_w_std / answer.power_w)
        else:
            assert found.bundle.power is None
    assert spreads[0] > spreads[1] > spreads[2]
    assert "no row has an energy: the bundle has no power" in warnings[0]
    assert ["power rests on" in line for line in warnings] == [False, True, True, False]
    kernels = kernel_rows(PLANTED, various_operators(4))
    silent = selection_of(replace(kernels, power_w=np.full(len(kernels), np.nan)))  # usual, and no cause for a warning
    assert few_power_warnings(silent, replace(PLANTED, power=None)) == ()
