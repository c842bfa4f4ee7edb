"""A simulated board remembers a bounded number of kernels, however long a campaign is."""

import pytest

from collector.bench import open_bench
from collector.errors import RunnerError
from collector.simulated.board import MOST_LOADED
from estimator.workload import make_operator


def test_kernels_prepared_long_ago_are_given_up_and_can_be_prepared_again() -> None:
    operators = [
        make_operator("elementwise", "add", "fp32", elements=1024.0 * (i + 1), reads=2048.0 * (i + 1)) for i in range(MOST_LOADED + 5)
    ]
    with open_bench("sim:a100-pcie-40gb", seed=1) as bench:
        prepared = [bench.runner.prepare(operator) for operator in operators]
        with pytest.raises(RunnerError, match="prepare it first"):
            bench.runner.run(prepared[4], 1)
        assert bench.runner.run(prepared[5], 1).launches == 1
        assert bench.runner.run(prepared[-1], 1).launches == 1
        assert bench.runner.run(bench.runner.prepare(operators[0]), 1).launches == 1
        with pytest.raises(RunnerError, match="prepare it first"):
            bench.runner.run(prepared[5], 1)
