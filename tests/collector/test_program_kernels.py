"""Programs on simulated boards: energy by kernel, the published good practice, and as few runs as an asked error takes."""

import json
import math
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from collector.bench import open_bench, open_simulated
from collector.programs.kernels import IDLE, measure_kernels
from collector.programs.program import Program, measure_program, stamped
from collector.sampling import Sampler
from collector.sensing.catalogue import board_sensor
from collector.sensing.live import characterise_sensor
from collector.sensing.repeated_measurement import measure_repeated
from estimator import Workload, make_operator, write_workload
from tests.collector.dataset_rows import addition, product
from tests.collector.made_readings import a_sensor
from tests.words import called, refused, told

BOARD = "sim:a100-pcie-40gb"


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    """Two kernels of very different power."""
    path = tmp_path_factory.mktemp("kernels") / "w.json"
    write_workload(Workload(name="w", operators=(product(4096), addition(2**26, "fp32")), counts=(400.0, 300.0)), path)
    return str(path)


def by_kernel(bench, *command):
    """A program, its run, and what its kernels drew."""
    sampler, program = Sampler(bench.gpu, bench.sensors), Program(command=command)
    return program, *measure_kernels(bench, sampler, program, characterise_sensor(bench, sampler), asked_mhz=None)


def test_kernels_have_the_energy_that_the_board_drew_in_their_time(workload):
    with open_bench(BOARD, seed=2, meter=True) as bench:
        program, run, found = by_kernel(bench, workload, "12")
        planted = Counter()
        for record in program.kernels:
            planted[record.name] += bench.planted_energy_j(record.start_ns, record.end_ns)
    assert len({one.name for one in found}) == 3
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
    large = product(4096, 3072, 3072)
    copies = tuple(make_operator("copy", "contiguous", "fp16", elements=1024 * (i + 1), reads=1024 * (i + 1)) for i in range(12))
    write_workload(Workload(name="gaps", operators=(*copies, large), counts=(*[1.0] * 12, 6.0)), tmp_path / "gaps.json")
    with open_bench("sim:h100-sxm", seed=3, meter=True) as bench:
        program, run, kernels = by_kernel(bench, str(tmp_path / "gaps.json"), "300")
        alone = bench.runner.run(bench.runner.prepare(large), 20_000)
        middle_ns = (alone.start_ns + alone.end_ns) // 2  # board power has then settled
        steady_w = bench.planted_energy_j(middle_ns, alone.end_ns) / (1e-9 * (alone.end_ns - middle_ns))
    found, name = {one.name: one for one in kernels}, program.kernels[12].name
    caused_j = steady_w * found[name].time_s
    assert abs(found[name].energy_j - caused_j) < 2.0 * found[name].energy_std_j
    assert found[name].energy_std_j < 0.4 * caused_j
    assert abs(found[IDLE].energy_j - (run.energy_j - caused_j)) < 2.0 * found[IDLE].energy_std_j


def test_a_program_without_kernels_or_readings_says_what_to_do(repository):
    refused(1, "no kernel was traced", f"run --gpu {BOARD} --kernels -- true")
    refused(1, "no reading of the power fell", f"run --gpu sim:a100-pcie-40gb --kernels -- {repository}/examples/gpt2-prefill.json")


@pytest.mark.parametrize("command", ["run", "practice"])
@pytest.mark.parametrize("times", ["0", "00", "-5", "1.5", "a"])
def test_a_program_runs_a_whole_number_of_times(workload, command, times):
    refused(1, "TIMES from 1 on", command, "--gpu", BOARD, "--", workload, times)


def test_a_program_between_two_readings_has_no_energy_and_none_is_wrong():
    command = "examples/gpt2-prefill.json"

    def energy(times, seed):
        with open_bench("sim:h200-sxm", seed=seed) as bench:
            sampler = Sampler(bench.gpu, bench.sensors)
            sensor = board_sensor("", bench.gpu.identity(), sampler.sensor_name, sampler.field)
            return measure_program(bench, sampler, Program(command=(command, times)), sensor, index=seed, asked_mhz=None)

    truth_j = energy("100", 0).energy_j / 50.0
    found = [energy("2", seed) for seed in range(12)]
    read = [run for run in found if math.isfinite(run.energy_j)]
    assert 0 < len(read) < len(found)
    for run in found:
        assert any("no reading fell within it" in note for note in run.notes) == (run not in read)
    for run in read:
        assert abs(run.energy_j - truth_j) < 4.0 * run.energy_std_j


def test_an_interruption_while_a_program_starts_stops_it_too(monkeypatch):
    begun = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            begun.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    with open_bench("sim:a100-pcie-40gb") as bench:
        run = Program(command=("sleep", "60")).ready(bench)
        with pytest.raises(KeyboardInterrupt):
            run()
    signal.signal(signal.SIGINT, before)
    assert [process.returncode for process in begun] == [-signal.SIGTERM]


def test_kernels_of_a_simulated_program_take_their_time_on_the_gpu(workload):
    """A launch by itself reaches the GPU a third of a millisecond after its host time; that is rest, not the kernel's time."""
    with open_bench(BOARD, seed=2) as bench:
        program = Program(command=(workload,))
        program.ready(bench)()
        alone = bench.runner.run(bench.runner.prepare(product(4096)), 4000)
    first, second = program.kernels[:2]
    assert (first.end_ns - first.start_ns) / first.launches == pytest.approx(1e9 * alone.segment_s.mean(), rel=0.1)
    assert second.start_ns - first.end_ns > 100_000


def test_the_good_practice_is_nearer_to_the_truth_than_the_naive_reading(workload):
    """The gain of the sensor stays in it: the paper has no meter."""
    out, _ = told(f"practice --gpu {BOARD} --trials 3 --seed 1 --json -- {workload}")
    methods = {row["method"]: row for row in json.loads(out)["methods"]}
    error = {name: abs(row["true_error"]) for name, row in methods.items()}
    assert error["practice"] < error["naive"]
    assert error["corrected"] < 0.1
    assert np.isfinite(methods["corrected"]["energy_std_j"])
    assert called(f"practice --gpu {BOARD} --trials 1 -- false") == 1


QUICK = (sys.executable, "-S", "-c", "pass")
FEW, SHORT_S = 3, 0.2
"""So few runs are enough for a program that takes much longer than an update of the sensor, as every one does on a slow machine."""


def measured(capfd, *words):
    """What is said of a program that runs."""
    assert called(*words) == 0
    return json.loads(capfd.readouterr().out)


def test_a_short_program_is_run_as_often_as_the_asked_error_takes(capfd):
    found = measured(capfd, "run", "--gpu", BOARD, "--json", "--std", "0.02", "--", *QUICK)
    (clock,), (run,) = found["clocks"], found["runs"]
    assert run["executions"] == clock["runs"]
    assert run["executions"] > FEW or run["latency_s"] > SHORT_S
    assert abs(clock["above_rest_j"]) < 5.0 * clock["energy_std_j"]  # how long the program takes is the machine's chance, not a seed's
    assert not any("was not reached" in note for note in found["notes"])


@pytest.mark.parametrize(
    "options, command, status, words",
    [
        (("--std", "0.01", "--repeats", "3"), QUICK, 2, "leave --repeats out"),
        (("--longest", "5s"), QUICK, 2, "give both"),
        (("--std", "0"), QUICK, 2, "--std"),
        (("--std", "0.01"), (sys.executable, "-S", "-c", "raise SystemExit(7)"), 7, "ended with status 7"),
        (("--std", "0.01"), ("no-such-program",), 127, "command not found"),
        (("--pmd", "sim"), QUICK, 2, "No such option '--pmd'"),
        ((), ("/",), 126, "cannot be run (Permission denied)"),
        (("--std", "0.01", "--longest", "0.001s"), QUICK, 1, "more than 0.001 s allow"),
    ],
)
def test_what_cannot_be_measured_is_one_line(options, command, status, words):
    refused(status, words, "run", "--gpu", BOARD, "--quiet", *options, "--", *command)


def test_a_counter_that_disagrees_within_what_its_steps_leave_open_is_no_note(tmp_path, capfd):
    with open_simulated("rtx-3090") as bench:
        identity = bench.gpu.identity()
    known = a_sensor(
        gpu_uuid=identity.uuid, driver=identity.driver, update_period_s=0.09997, window_s=0.09997, window_std_s=1e-4, delay_s=1e-3,
        settle_s=0.3, gain=0.948, gain_std=2e-4, offset_w=1.4, offset_std_w=0.03, reading_noise_w=0.25, resolution_w=0.01,
    )  # fmt: skip
    (tmp_path / "s.json").write_text(json.dumps(known.document()))
    words = f"run --gpu sim:rtx-3090 --sensor {tmp_path / 's.json'} --json --repeats 6 --"
    found = measured(capfd, f"{words} {sys.executable} -S -c 'import time; time.sleep(0.25)'")
    away = [abs(run["counter_energy_j"] - run["energy_j"]) for run in found["runs"]]
    assert max(away) > 3.0 * max(run["energy_std_j"] for run in found["runs"]), (
        "the readings' error alone does not cover the counter's steps"
    )
    assert not any("counter says" in note for note in found["notes"])


def test_readings_and_counter_are_as_right_as_they_say(workload):
    with open_bench("sim:v100-pcie-32gb", seed=3, meter=True) as bench:
        sampler = Sampler(bench.gpu, bench.sensors)
        sensor = characterise_sensor(bench, sampler)
        for times in (1, 2, 5):
            run = measure_program(bench, sampler, Program(command=(workload, str(times))), sensor, index=times, asked_mhz=None)
            true_j = bench.planted_energy_j(round(run.start_s * 1e9), round((run.start_s + run.latency_s) * 1e9))
            assert run.energy_j == pytest.approx(true_j, abs=3.0 * run.energy_std_j)
            assert run.counter_energy_j == pytest.approx(true_j, abs=3.0 * run.counter_energy_std_j)
            assert max(run.energy_std_j, run.counter_energy_std_j) < 0.02 * true_j


def test_few_readings_and_few_executions_are_as_wrong_as_they_say(tmp_path):
    """Programs of 3 ms to a second: none, one or some readings fall within them, and windows that are longer hold rest as well."""
    away = {"run": [], "std": []}
    for seed, board in enumerate(("rtx-3090", "a100-pcie-40gb", "h200-sxm", "v100-pcie-32gb")):
        with open_bench(f"sim:{board}", seed=seed, meter=True) as bench:
            sampler = Sampler(bench.gpu, bench.sensors)
            sensor = characterise_sensor(bench, sampler)
            for count in (5.0, 20.0, 100.0, 500.0):
                path = str(tmp_path / f"{count}.json")
                kernels = (product(4096), addition(2**26, "fp32"), product(2048), addition(2**22, "fp32"))
                write_workload(Workload(name="w", operators=kernels, counts=(count, 0.7 * count, count, 4.0 * count)), path)
                for index in range(4):
                    run = measure_program(bench, sampler, Program(command=(path,)), sensor, index=index, asked_mhz=None)
                    true_j = bench.planted_energy_j(round(run.start_s * 1e9), round((run.start_s + run.latency_s) * 1e9))
                    away["run"].append((run.energy_j - true_j) / run.energy_std_j)
                (batch,) = (found := measure_repeated(bench, sampler, stamped(Program(command=(path,)), bench), sensor, asked_std=1.0)).runs
                kept_s = batch.load.start_s[0] + batch.plan.discard_s
                ends = zip(batch.load.start_s, batch.load.end_s, strict=True)
                true_j = np.mean([bench.planted_energy_j(round(1e9 * start), round(1e9 * end)) for start, end in ends if start >= kept_s])
                away["std"].append((found.energy_j - true_j) / found.energy_std_j)
    for name, values in away.items():
        known = np.abs([value for value in values if math.isfinite(value)])
        assert len(known) > 0.6 * len(values)
        assert np.mean(known > 2.0) < 0.15, name
        assert known.max() < 4.0, name


def test_runs_begin_at_phases_that_fill_the_period_of_the_updates(workload):
    with open_bench(BOARD, seed=2) as bench:
        sampler, sensor = Sampler(bench.gpu, bench.sensors), board_sensor("a100-pcie-40gb", bench.gpu.identity(), "nvml", "instant")
        program, period_s = Program(command=(workload,)), sensor.update_period_s
        starts = [measure_program(bench, sampler, program, sensor, index=index, asked_mhz=None).start_s for index in range(8)]
    phases = np.sort(np.mod(starts, period_s)) / period_s
    assert np.diff(phases, append=phases[0] + 1.0).max() < 0.24, "the widest gap of eight golden steps"
