"""Energy by kernel of a program, and the published good practice, against a simulated board's own energy."""

import json

import numpy as np
import pytest

from collector.bench import open_bench
from collector.cli import main
from collector.programs.execution import Program
from collector.programs.kernels import IDLE, measure_kernels
from collector.sampling import Sampler
from collector.sensing.live import characterise_sensor
from estimator.formats import write_workload
from estimator.vocabulary.workload import Workload, make_operator
from tests.words import refused

BOARD = "sim:a100-pcie-40gb"


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    """Two kernels of very different power."""
    path = tmp_path_factory.mktemp("kernels") / "w.json"
    product = make_operator("gemm", "linear", "fp16", batch=1, m=4096, n=4096, k=4096)
    sums = make_operator("elementwise", "add", "fp32", elements=2**26, reads=2**27)
    write_workload(Workload(name="w", operators=(product, sums), counts=(400.0, 300.0)), path)
    return str(path)


def test_kernels_have_the_energy_that_the_board_drew_in_their_time(workload):
    with open_bench(BOARD, seed=2, meter=True) as bench:
        sampler = Sampler(bench.gpu, bench.sensors)
        calibration = characterise_sensor(bench, sampler)
        program = Program(command=(workload, "12"))
        run, found = measure_kernels(bench, sampler, program, calibration)
        planted = {}
        for record in program.kernels:
            planted[record.name] = planted.get(record.name, 0.0) + bench.planted_energy_j(record.start_ns, record.end_ns)
    kernels = {one.name: one for one in found}
    assert len(kernels) == 3
    assert found[-1].name == IDLE
    assert sum(one.energy_j for one in found) == pytest.approx(run.energy_j, rel=0.03)
    named = [one for one in found if one.name != IDLE]
    truths = sorted(planted.values(), reverse=True)
    for one, true_j in zip(named, truths, strict=True):
        assert abs(one.energy_j - true_j) < max(3.0 * one.energy_std_j, 0.03 * true_j), one.name
        assert one.energy_std_j < 0.2 * true_j
    assert sorted(one.launches for one in named) == [12 * 300, 12 * 400]


def test_kernels_that_alternate_with_gaps_share_their_energy_within_the_errors(tmp_path):
    """Gaps of a quarter of a millisecond before each kernel: most of the time is rest, which no reading shows alone."""
    product = make_operator("gemm", "linear", "fp16", batch=1, m=4096, n=3072, k=3072)
    copies = tuple(make_operator("copy", "contiguous", "fp16", elements=1024 * (i + 1), reads=1024 * (i + 1)) for i in range(12))
    write_workload(Workload(name="gaps", operators=(*copies, product), counts=(*[1.0] * 12, 6.0)), tmp_path / "gaps.json")
    with open_bench("sim:h100-sxm", seed=3, meter=True) as bench:
        sampler = Sampler(bench.gpu, bench.sensors)
        calibration = characterise_sensor(bench, sampler)
        program = Program(command=(str(tmp_path / "gaps.json"), "300"))
        run, kernels = measure_kernels(bench, sampler, program, calibration)
        alone = bench.runner.run(bench.runner.prepare(product), 20_000)
        middle_ns = (alone.start_ns + alone.end_ns) // 2  # board power has then settled
        steady_w = bench.planted_energy_j(middle_ns, alone.end_ns) / (1e-9 * (alone.end_ns - middle_ns))
    found, name = {one.name: one for one in kernels}, program.kernels[12].name
    caused_j = steady_w * found[name].time_s
    assert abs(found[name].energy_j - caused_j) < 2.0 * found[name].energy_std_j
    assert found[name].energy_std_j < 0.4 * caused_j
    assert abs(found[IDLE].energy_j - (run.energy_j - caused_j)) < 2.0 * found[IDLE].energy_std_j


def test_a_program_without_kernels_says_what_to_do(capsys):
    refused(capsys, 1, "no kernel was traced", "run", "--gpu", BOARD, "--kernels", "--", "true")


@pytest.mark.parametrize("command", ["run", "practice"])
@pytest.mark.parametrize("times", ["0", "00", "-5", "1.5", "a"])
def test_a_program_runs_a_whole_number_of_times(workload, capsys, command, times):
    refused(capsys, 1, "TIMES from 1 on", command, "--gpu", BOARD, "--", workload, times)


def test_kernels_of_a_simulated_program_take_their_time_on_the_gpu(workload):
    """A launch by itself reaches the GPU a third of a millisecond after its host time; that is rest, not the kernel's time."""
    with open_bench(BOARD, seed=2) as bench:
        program = Program(command=(workload,))
        program.ready(bench)()
        operator = make_operator("gemm", "linear", "fp16", batch=1, m=4096, n=4096, k=4096)
        alone = bench.runner.run(bench.runner.prepare(operator), 4000)
    product = program.kernels[0]
    assert (product.end_ns - product.start_ns) / product.launches == pytest.approx(1e9 * alone.segment_s.mean(), rel=0.1)
    assert program.kernels[1].start_ns - product.end_ns > 100_000


def test_the_good_practice_is_nearer_to_the_truth_than_the_naive_reading(workload, capsys):
    """The gain of the sensor stays in it: the paper has no meter."""
    assert main(["practice", "--gpu", BOARD, "--trials", "3", "--seed", "1", "--json", "--", workload]) == 0
    methods = {row["method"]: row for row in json.loads(capsys.readouterr().out)["methods"]}
    error = {name: abs(row["true_error"]) for name, row in methods.items()}
    assert error["practice"] < error["naive"]
    assert error["corrected"] < 0.1
    assert np.isfinite(methods["corrected"]["energy_std_j"])
    assert main(["practice", "--gpu", BOARD, "--trials", "1", "--", "false"]) == 1
