"""The example workloads are what they say they are."""

import json
import shutil

import pytest

from estimator import read_workload
from estimator.transforms.rescaling import sizes_in_name
from tests.estimator.traced import counted

# Parameters in matrix products, the output layer included: those of the published models without embeddings, biases and norms.
# GPT-2 small: 124.4 million in all, its output layer shares the embedding's (768 · 50257).
# Llama 3.1 8B: 8.03 billion in all, the embedding (4096 · 128256) used once more is not a product.
PUBLISHED_PARAMETERS = {"gpt2-prefill": 124.4e6, "llama-8b-decode": 8.03e9 - 4096 * 128256}


@pytest.mark.parametrize("name", sorted(PUBLISHED_PARAMETERS))
def test_example_multiplies_by_every_weight_of_the_published_model(name, repository):
    workload = read_workload(repository / "examples" / f"{name}.json")
    weights = sum(
        count * operator["n"] * operator["k"]
        for operator, count in counted(workload)
        if (operator.family, operator.operator) == ("gemm", "linear")
    )
    assert weights == pytest.approx(PUBLISHED_PARAMETERS[name], rel=0.01)


def test_every_example_is_read_without_a_warning(repository):
    files = sorted((repository / "examples").glob("*.json"))
    assert {file.stem for file in files} == set(PUBLISHED_PARAMETERS)
    for file in files:
        workload = read_workload(file)
        assert (workload.name.startswith(file.stem), workload.unknown, workload.warnings) == (True, (), ())
        assert sizes_in_name(workload.name), "so that a sweep may ask for other sizes"


def test_the_notebook_runs_from_measuring_to_estimating(repository, monkeypatch, capsys):
    notebook = json.loads((repository / "examples" / "from-measuring-to-estimating.ipynb").read_text())
    monkeypatch.chdir(repository / "examples")
    names = {}
    for cell in notebook["cells"]:
        assert not cell.get("outputs")
        if cell["cell_type"] == "code":
            source = "".join(cell["source"]).replace('"15m"', '"8m"')  # half of its kernels suffice
            exec(compile(source, cell["id"], "exec"), names)
    capsys.readouterr()
    found = {path.name for path in names["folder"].iterdir()}
    shutil.rmtree(names["folder"])
    assert {"dataset.parquet", "dataset.html", "a100-simulated.json", "report.html"} <= found
    assert {names["collected"], names["fitted"]} == {0}
    points, low, high = names["points"], *names["answer"].clocks_mhz
    assert points.validity() == ["measured"] * len(points)
    assert 510.0 <= low < high < 1410.0  # the least energy lies between the measured clocks
