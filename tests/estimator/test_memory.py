"""Operators that no board can hold are said to be so, and nothing else is."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.bundles.files import load_bundle
from estimator.cli import main
from estimator.memory import GIB
from estimator.prediction import estimate
from estimator.questions.sweeping import sweep
from estimator.reckoning import operator_work
from estimator.specifications import load_gpu
from estimator.workload import Workload, make_operator

A100 = load_bundle("a100-pcie-40gb-eager")


def product(rows: int) -> Workload:
    """C of rows × 2^17 in bf16: a quarter of a MiB a row, and A of 2 KiB a row."""
    operator = make_operator("gemm", "linear", "bf16", batch=1, m=rows, n=2**17, k=1024)
    return Workload(name="large", operators=(operator,), counts=(1.0,))


def told(workload: Workload, **settings: object) -> list[str]:
    return [line for line in estimate(workload, A100, **settings)[0].warnings if "GiB" in line]  # type: ignore[arg-type]


@given(st.integers(1, 500_000))
def test_an_operator_is_warned_about_where_its_tensors_exceed_the_memory_and_nowhere_else(rows: int) -> None:
    workload = product(rows)
    work = operator_work(workload.operators[0])
    size = work.read_byte + work.write_byte
    assert len(told(workload)) == (size > A100.gpu.dram_bytes)


def test_the_warning_names_the_operator_its_size_and_the_boards() -> None:
    (line,) = told(product(200_000))
    assert f"{(200_000 * (2**18 + 2**11) + 2**28) / GIB:.4g} GiB" in line
    assert "gemm.linear" in line
    assert "40 GiB of a100-pcie-40gb" in line
    assert estimate(product(200_000), A100)[0].validity == "outside"


@pytest.mark.parametrize(
    ("family", "operator", "sizes"),
    [
        ("conv", "conv2d", {"batch": 4096, "channels": 64, "height": 256, "width": 256, "filters": 64, "kernel_h": 3, "kernel_w": 3,
                            "stride": 1, "padding": 1, "groups": 1}),
        ("attention", "prefill", {"batch": 512, "queries": 8192, "context": 8192, "heads": 32, "kv_heads": 32, "head_dim": 128,
                                  "window": 0, "causal": 1}),
        ("softmax", "softmax", {"rows": 2**22, "dim": 2**13}),
        ("elementwise", "add", {"elements": 2**34, "reads": 2**35}),
        ("copy", "transpose", {"elements": 2**34, "reads": 2**34}),
    ],
)  # fmt: skip
def test_every_family_is_looked_at(family: str, operator: str, sizes: dict[str, int]) -> None:
    one = make_operator(family, operator, "bf16", **sizes)
    assert len(told(Workload(name="large", operators=(one,), counts=(1.0,)))) == 1


def test_of_several_boards_only_those_that_are_too_small_are_warned_about() -> None:
    gpus = [load_gpu(name) for name in ("a100-pcie-40gb", "a100-pcie-80gb", "h200-sxm")]
    points = sweep(product(200_000), A100, gpu=gpus)
    assert [any("GiB" in line for line in case.warnings) for case in points.cases] == [True, False, False]


def test_the_command_ends_with_status_3_and_the_warning_in_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "large.json"
    entry = {"family": "gemm", "operator": "linear", "precision": "bf16", "count": 1, "batch": 1, "m": 200_000, "n": 2**17, "k": 1024}
    path.write_text(json.dumps({"format": "wattprint-workload", "format_version": "1.0", "operators": [entry]}))
    assert main([str(path), "--bundle", "a100-pcie-40gb-eager", "--json"]) == 3
    assert any("GiB" in line for line in json.loads(capsys.readouterr().out)["warnings"])
