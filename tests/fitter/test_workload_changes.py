"""What a new bundle changes for workloads."""

from dataclasses import replace

import pytest

from estimator.bundle.content import Bundle
from fitter.release.release import differences_document
from fitter.release.workload_changes import change_table, workload_changes
from fitter.report.text import diff_lines
from tests.estimator.synthetic import transformer
from tests.fitter.measured import planted_bundle

WORKLOADS = [transformer(512, 1024, 4, name="model", family="large")]


def slower(bundle: Bundle, factor: float) -> Bundle:
    """All times of all groups longer by a factor."""
    groups = {
        key: replace(
            group, coefficients={name: value if name.endswith("exponent") else factor * value for name, value in group.coefficients.items()}
        )
        for key, group in bundle.groups.items()
    }
    return replace(bundle, groups=groups, host=replace(bundle.host, launch_s=factor * bundle.host.launch_s))


def test_a_bundle_changes_nothing_against_itself() -> None:
    bundle = planted_bundle()
    changes = workload_changes(bundle, bundle, WORKLOADS)
    assert len(changes) == 9  # three clocks, three quantities
    assert not any(change.telling for change in changes)
    assert "none of 1 workloads" in change_table(changes)[0]


@pytest.mark.parametrize(("factor", "telling"), [(1.019, False), (1.05, True), (0.9, True)])
def test_a_change_counts_beyond_two_percent(factor: float, telling: bool) -> None:
    bundle = planted_bundle()
    changes = workload_changes(bundle, slower(bundle, factor), WORKLOADS)
    latency = [change for change in changes if change.quantity == "latency_s"]
    assert [change.telling for change in latency] == [telling] * 3
    assert all(change.change == pytest.approx(factor - 1.0, abs=0.004) for change in latency)
    assert len({change.sm_clock_mhz for change in latency}) == 3


def test_power_that_one_bundle_lacks_is_told() -> None:
    bundle = planted_bundle()
    changes = workload_changes(bundle, replace(bundle, power=None), WORKLOADS)
    assert [change.telling for change in changes if change.quantity == "power_w"] == [True] * 3
    said = differences_document(bundle, replace(bundle, power=None), changes)
    assert said["step"] == "major"
    assert {row["new"] for row in said["workloads"] if row["quantity"] == "power_w"} == {None}
    assert any("power" in line and "–" in line for line in diff_lines(bundle, replace(bundle, power=None), changes))
