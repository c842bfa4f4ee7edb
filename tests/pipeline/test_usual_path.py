"""The usual path: collect, fit and estimate follow each other with exit status 0, whatever warnings there are."""

from collector.cli import main as collect
from estimator.cli import main as estimate
from fitter.cli import main as fit
from tests.collector.campaign_texts import SHORT_HEAD

PRODUCTS = """
[[kernels]]
family = "gemm"
operator = "linear"
precision = "fp16"
count = 20
[kernels.shape]
batch = 1
m = { low = 64, high = 8192, multiple = 8 }
n = { low = 256, high = 8192, multiple = 64 }
k = { low = 256, high = 8192, multiple = 64 }
"""


def test_collect_fit_and_estimate_follow_each_other(tmp_path, repository, capsys):
    few, data, bundle = tmp_path / "few.toml", tmp_path / "d.parquet", tmp_path / "b.json"
    few.write_text(SHORT_HEAD + PRODUCTS)
    assert collect(["--gpu", "sim:a100-pcie-40gb", "--freqs", "900,1410", "--pmd", "sim", "--campaign", str(few), "--out", str(data)]) == 0
    capsys.readouterr()
    assert fit([str(data), "-o", str(bundle)]) == 0
    verdict = capsys.readouterr().out.splitlines()
    assert verdict[0].endswith("the simulated a100-pcie-40gb at 900 to 1410 MHz")
    assert verdict[1].startswith("held-out kernels err by ")
    assert " in energy on average (40 rows)" in verdict[1]
    assert estimate([str(repository / "examples" / "gpt2-prefill.json"), "--bundle", str(bundle), "--freq", "900"]) == 0
