"""The acceptance gate: what is required, what was found, and what is said where it is missed."""

import click
import pytest

from fitter.validate.predictions import ErrorRow, Errors
from fitter.validate.requirements import a_requirement, judge, missed_line, verdict_documents

CONTEXT = click.Context(click.Command("fit"))
PARAMETER = click.Option(["--require"])


def parsed(text: str | None) -> dict[str, float]:
    return a_requirement(CONTEXT, PARAMETER, text)


def errors(mape: float) -> Errors:
    return Errors(n=10, mape=mape, median=mape, p95=mape, bias=0.0, coverage=0.9)


def row(kind: str, latency: float | None, power: float | None) -> ErrorRow:
    return ErrorRow(
        gpu="a10",
        family=kind,
        operator="all",
        precision="",
        n=10,
        latency=None if latency is None else errors(latency),
        power=None if power is None else errors(power),
    )


def test_limits_are_percent_with_or_without_the_sign() -> None:
    assert parsed("latency=5%,power=4%") == parsed(" latency=5 , power=4.0 ") == {"latency": 5.0, "power": 4.0}
    assert parsed(None) == {}


@pytest.mark.parametrize(
    "text",
    ["", "latency", "latency=", "latency=five", "latency=-1%", "latency=nan", "latency=inf", "latency=1e9999", "energy=5%",
     "latency=5%;power=4%",      "latency=5%,,power=4%", "latency=5%,latency=6%", "latency=5%%", "LATENCY=5%", "latency=5%" * 10_000],
)  # fmt: skip
def test_anything_else_is_wrong_usage(text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        parsed(text)
    assert len(caught.value.message) < 200


def test_the_worst_kind_of_rows_decides() -> None:
    summary = {"kernels": row("kernels", 4.0, 6.0), "workloads": row("workloads", 7.0, None)}
    latency, power = judge({"latency": 5.0, "power": 6.0}, summary)
    assert (latency["met"], latency["found"], latency["kind"]) == (False, 7.0, "workloads")
    assert (power["met"], power["found"], power["kind"]) == (True, 6.0, "kernels")
    line = missed_line((latency, power))
    assert "latency" in line
    assert "workloads" in line
    assert "power" not in line
    assert "\n" not in line


def test_what_was_not_compared_is_not_met() -> None:
    (verdict,) = judge({"power": 50.0}, {"kernels": row("kernels", 1.0, None)})
    assert verdict_documents((verdict,)) == [{"quantity": "power", "limit": 50.0, "found": None, "kind": None, "met": False}]
    assert missed_line((verdict,)).startswith("requirement not met: power")
