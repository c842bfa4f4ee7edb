"""Design tables: the streamed fit is the fit of the rows themselves, whatever the files, blocks and workers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from estimator.bundles.files import load_bundle, save_bundle
from estimator.bundles.limits import LN_STD
from estimator.specifications import load_gpu
from fitter.errors import CalibrationError, InputError
from fitter.kernels.latency import ERROR_SCALE
from fitter.scale.design_bundle import design_bundle
from fitter.scale.design_fit import DesignFit, fit_design
from fitter.scale.design_table import EPSILON_UNIT_S
from fitter.scale.partitions import open_partitioned
from fitter.scale.passes import LocalWorkers
from fitter.scale.solution import data_weight, design_priors
from tests.fitter.scale.generated import FIXED_S, GROUPS, PHASES, TRUTH, design_arrow, design_columns, write_parts

ROWS = 4000


def fitted(folder: Path, workers: int = 1, **options: float) -> DesignFit:
    """The streamed fit of a folder."""
    return fit_design(open_partitioned(folder), LocalWorkers(workers), gpu_name="a100-pcie-40gb", **options)  # type: ignore[arg-type]


def solved_in_memory(name: str, ideal: np.ndarray, time_s: np.ndarray, passes: int) -> np.ndarray:
    """The same objective, written down row by row and solved by least squares of all rows."""
    design = np.column_stack([ideal, np.full(len(time_s), EPSILON_UNIT_S)]) / time_s[:, None]
    centre, std = design_priors(name, [phase.removesuffix("_s") for phase in PHASES], EPSILON_UNIT_S)
    weight = np.ones(len(time_s))
    for _ in range(passes + 1):
        root = np.sqrt(weight * data_weight(len(time_s)))
        values, _ = nnls(np.vstack([design * root[:, None], np.diag(1.0 / std)]), np.concatenate([root, centre / std]))
        weight = 1.0 / np.sqrt(1.0 + 0.5 * ((design @ values - 1.0) / ERROR_SCALE) ** 2)
    return np.asarray(values)


@pytest.mark.parametrize("passes", [0, 3])
def test_streamed_coefficients_are_those_of_a_fit_in_memory(tmp_path: Path, passes: int) -> None:
    group, ideal, time_s = design_columns(ROWS)
    write_parts(design_arrow(group, ideal, time_s), tmp_path / "d", [1234, 3210])
    found = fitted(tmp_path / "d", robust_passes=passes)
    order = [found.phases.index(phase.removesuffix("_s")) for phase in PHASES]
    for number, name in enumerate(GROUPS):
        own = group == number
        expected = solved_in_memory(name, ideal[own], time_s[own], passes)
        np.testing.assert_allclose(found.groups[name].values[[*order, -1]], expected, rtol=1e-9)


@settings(max_examples=4)
@given(st.lists(st.integers(1, ROWS - 1), max_size=5, unique=True), st.integers(50, 3000), st.integers(1, 3))
def test_partitions_and_workers_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], row_group: int, workers: int
) -> None:
    table = design_arrow(*design_columns(ROWS))
    whole = fitted(write_parts(table, tmp_path_factory.mktemp("whole"), []))
    cut = fitted(write_parts(table, tmp_path_factory.mktemp("cut"), sorted(cuts), row_group), workers)
    assert (cut.rows, cut.used, cut.rejected) == (whole.rows, whole.used, whole.rejected)
    for name in GROUPS:
        np.testing.assert_allclose(cut.groups[name].values, whole.groups[name].values, rtol=1e-9)
        np.testing.assert_allclose(cut.groups[name].covariance, whole.groups[name].covariance, rtol=1e-9)
        assert cut.std[name] == pytest.approx(whole.std[name], rel=1e-9)


def test_the_number_of_workers_does_not_change_a_bit(tmp_path: Path) -> None:
    write_parts(design_arrow(*design_columns(ROWS)), tmp_path, [500, 2000, 2001, 3500])
    one, three = fitted(tmp_path, 1), fitted(tmp_path, 3)
    for name in GROUPS:
        assert one.groups[name].values.tobytes() == three.groups[name].values.tobytes()
        assert one.groups[name].covariance.tobytes() == three.groups[name].covariance.tobytes()
    assert one.errors == three.errors


def test_hive_folders_name_the_group(tmp_path: Path) -> None:
    group, ideal, time_s = design_columns(ROWS)
    table = design_arrow(group, ideal, time_s)
    plain, hive = write_parts(table, tmp_path / "plain", []), tmp_path / "hive"
    for number, name in enumerate(GROUPS):
        own = table.filter(pa.array(group == number)).drop_columns(["group"])
        write_parts(own, hive / f"group={name}", [])
    for name in GROUPS:
        np.testing.assert_allclose(fitted(hive).groups[name].values, fitted(plain).groups[name].values, rtol=1e-9)


def test_planted_coefficients_come_back_within_their_deviations(tmp_path: Path) -> None:
    write_parts(design_arrow(*design_columns(60_000)), tmp_path, [])
    found = fitted(tmp_path)
    order = [found.phases.index(phase.removesuffix("_s")) for phase in PHASES]
    truth = np.column_stack([TRUTH, FIXED_S / EPSILON_UNIT_S])
    for number, name in enumerate(GROUPS):
        solution = found.groups[name]
        spread = np.sqrt(np.diag(solution.covariance))[[*order, -1]]
        # relative errors of 3 % shrink all coefficients by 1.5 · 0.03², and priors pull by less than half a percent
        assert np.all(np.abs(solution.values[[*order, -1]] - truth[number]) < 3.0 * spread + 0.005 * truth[number])
        assert found.std[name] == pytest.approx(0.03, rel=0.1)


def test_outliers_bend_a_robust_fit_less_than_a_plain_one(tmp_path: Path) -> None:
    group, ideal, time_s = design_columns(ROWS)
    time_s[::20] *= 0.2
    write_parts(design_arrow(group, ideal, time_s), tmp_path, [])
    off = []
    for passes in (0, 3):
        found = fitted(tmp_path, robust_passes=passes)
        own = [found.phases.index(phase.removesuffix("_s")) for phase in PHASES]
        off.append(np.abs(np.array([found.groups[name].values[own] for name in GROUPS]) / TRUTH - 1.0).mean())
    assert off[1] < 0.5 * off[0]


def test_a_launch_floor_is_found_and_does_not_bend_the_coefficients(tmp_path: Path) -> None:
    group, ideal, time_s = design_columns(20_000)
    floor_s = float(np.quantile(time_s, 0.3))
    write_parts(design_arrow(group, ideal, np.maximum(time_s, floor_s)), tmp_path, [])
    found, plain = fitted(tmp_path), fitted(tmp_path, robust_passes=0)
    assert set(found.floors_s) == set(GROUPS)
    own = [found.phases.index(phase.removesuffix("_s")) for phase in PHASES]
    for number, name in enumerate(GROUPS):
        assert found.floors_s[name] == pytest.approx(floor_s, rel=0.02)
        np.testing.assert_allclose(found.groups[name].values[own], TRUTH[number], rtol=0.025)
        assert np.all(plain.groups[name].values[own] < 0.9 * TRUTH[number])


def test_no_floor_is_seen_where_there_is_none(tmp_path: Path) -> None:
    write_parts(design_arrow(*design_columns(ROWS)), tmp_path, [])
    assert fitted(tmp_path).floors_s == {}


def test_rows_that_cannot_be_are_counted_and_change_nothing(tmp_path: Path) -> None:
    group, ideal, time_s = design_columns(ROWS)
    table = design_arrow(group, ideal, time_s)
    bad = table.slice(0, 8).to_pydict()
    bad["latency_s"][:3] = [float("nan"), -1.0, None]
    bad["math_s"][3] = float("nan")
    bad["dram_s"][4] = 1e3
    bad["group"][5:] = ["no such family", "gemm.nosuch.bf16", "gemm.linear.bf99"]
    write_parts(pa.concat_tables([table, pa.table(bad, schema=table.schema)]), tmp_path / "bad", [3000])
    write_parts(table, tmp_path / "good", [3000])
    found, expected = fitted(tmp_path / "bad"), fitted(tmp_path / "good")
    assert dict(found.rejected) == {"BAD_LATENCY": 3, "ABOVE_ROOF": 1, "BAD_DESIGN": 1, "UNKNOWN_OPERATOR": 3}
    for name in GROUPS:
        np.testing.assert_allclose(found.groups[name].values, expected.groups[name].values, rtol=1e-9)


def test_weights_count_as_rows_would(tmp_path: Path) -> None:
    group, ideal, time_s = design_columns(2000)
    table = design_arrow(group, ideal, time_s)
    write_parts(table.append_column("weight", pa.array(np.full(2000, 7.0))), tmp_path / "weighted", [])
    write_parts(table, tmp_path / "plain", [])
    weighted, plain = fitted(tmp_path / "weighted"), fitted(tmp_path / "plain")
    for name in GROUPS:
        np.testing.assert_allclose(weighted.groups[name].values, plain.groups[name].values, rtol=1e-9)
        np.testing.assert_allclose(weighted.groups[name].covariance, plain.groups[name].covariance, rtol=1e-9)


def test_stated_deviations_hold_where_rows_know_how_uncertain_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    count, rows = 60, 200
    scatter = 10.0 ** rng.uniform(-2.3, -0.8, (count, rows))
    ideal = 10.0 ** rng.uniform(-5.0, -2.5, (count, rows))
    truth = 1.05 * np.exp(0.2 * rng.standard_normal(count))
    time_s = (truth[:, None] * ideal + 1.5e-6) * np.exp(scatter * rng.standard_normal((count, rows)))
    names = np.repeat([f"gemm.linear.bf16.g{i}" for i in range(count)], rows)
    columns = {"group": names, "latency_s": time_s.ravel(), "math_s": ideal.ravel(), "weight": 1e-4 * scatter.ravel() ** -2.0}
    pq.write_table(pa.table(columns), tmp_path / "d.parquet")
    found = fitted(tmp_path, robust_passes=0)
    solutions = [found.groups[f"gemm.linear.bf16.g{i}"] for i in range(count)]
    score = [(one.values[0] - value) / np.sqrt(one.covariance[0, 0]) for one, value in zip(solutions, truth, strict=True)]
    assert 0.75 < np.sqrt(np.mean(np.square(score))) < 1.3


def test_columns_that_rise_together_are_named_and_their_bundle_can_be_read(tmp_path: Path) -> None:
    """A hundred groups: in some the priors leave next to nothing, or nothing, to the column that is twice the other."""
    rng = np.random.default_rng(4)
    count, rows = 100, 60
    ideal = 10.0 ** rng.uniform(-5.5, -2.5, (count, rows))
    truth = 1.1 * np.exp(0.2 * rng.standard_normal((count, 1)))
    time_s = (truth * ideal + 3e-6) * np.exp(0.03 * rng.standard_normal((count, rows)))
    names = np.repeat([f"gemm.linear.bf16.g{i}" for i in range(count)], rows)
    columns = {"group": names, "latency_s": time_s.ravel(), "math_s": ideal.ravel(), "l2_s": 2.0 * ideal.ravel()}
    pq.write_table(pa.table(columns), tmp_path / "d.parquet")
    table = open_partitioned(tmp_path / "d.parquet")
    found = fit_design(table, LocalWorkers(1), gpu_name="a100-pcie-40gb")
    nearest = min(one.values[0] / one.values[1] for one in found.groups.values() if one.values[1] > 0.0)
    assert nearest > 0.0
    bundle = save_bundle(design_bundle(found, table, load_gpu("a100-pcie-40gb"), name="", version="0.1.0", seed=0), tmp_path / "b.json")
    assert load_bundle(tmp_path / "b.json") == bundle
    notes = "\n".join(bundle.notes)
    assert "cannot tell apart, tied by their priors: gemm.linear.bf16.g" in notes
    zero = sum(one.values[1] == 0.0 for one in found.groups.values())
    assert ("the rows drove to zero: gemm.linear.bf16.g" in notes) == (zero > 0)


def test_a_coefficient_that_is_all_but_zero_has_a_deviation_that_a_bundle_can_hold(tmp_path: Path) -> None:
    write_parts(design_arrow(*design_columns(ROWS)), tmp_path / "d", [])
    found = fitted(tmp_path / "d")
    name = GROUPS[0]
    one = found.groups[name]
    values = one.values.copy()
    values[0] = 1e-4 * np.sqrt(one.covariance[0, 0])
    less = replace(found, groups={**found.groups, name: replace(one, values=values)})
    table = open_partitioned(tmp_path / "d")
    bundle = save_bundle(design_bundle(less, table, load_gpu("a100-pcie-40gb"), name="", version="0.1.0", seed=0), tmp_path / "b.json")
    assert load_bundle(tmp_path / "b.json") == bundle
    assert max(bundle.groups[name].ln_std.values()) == LN_STD[1]
    assert f"{name}.{found.phases[0]}" not in bundle.latency_parameters.names


def test_a_held_out_kernel_is_held_out_in_all_its_rows(tmp_path: Path) -> None:
    group, ideal, time_s = design_columns(50, scatter=0.0)
    repeated = np.repeat(np.arange(50), 40)
    noisy = time_s[repeated] * np.exp(0.02 * np.random.default_rng(1).standard_normal(2000))
    write_parts(design_arrow(group[repeated], ideal[repeated], noisy), tmp_path, [])
    held = sum(row.n for row in fitted(tmp_path).errors)
    assert held % 40 == 0
    assert 0 < held < 2000


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    table = design_arrow(*design_columns(10))
    nothing = table.set_column(1, "latency_s", pa.array([float("nan")] * 10))
    write_parts(nothing, tmp_path, [])
    with pytest.raises(CalibrationError, match="no usable row among 10 .10 BAD_LATENCY"):
        fitted(tmp_path)


def test_text_where_numbers_belong_is_an_error(tmp_path: Path) -> None:
    table = design_arrow(*design_columns(10))
    pq.write_table(table.set_column(2, "math_s", pa.array(["x"] * 10)), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="column 'math_s' holds string; expected numbers"):
        fitted(tmp_path)
