"""`measure`: energies of blocks and windows on simulated boards, whose true energy is known; errors, nesting, tasks."""

import asyncio
import math
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from collector import measure
from collector.errors import CollectorError
from collector.measuring.measure import Measurement, open_watched
from collector.sensing.board_power import GRID_S, LAUNCH_LAG_S, LAUNCH_RISE_S, run_cells, smoothed
from collector.sensing.deconvolve import deconvolve
from collector.sensing.response import SensorResponse
from collector.sensing.updates import BoardUpdates
from estimator.formats import write_workload
from estimator.vocabulary.workload import Workload
from tests.collector.dataset_rows import product

BOARD = "sim:rtx-3090"


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    """A program of half a second."""
    path = tmp_path_factory.mktemp("measure") / "w.json"
    write_workload(Workload(name="w", operators=(product(4096),), counts=(300.0,)), path)
    return str(path)


@pytest.fixture
def still_host(monkeypatch):
    """The host takes no time: what a simulated board does then depends on its seed alone."""
    monkeypatch.setattr("collector.measuring.measure.time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.mark.usefixtures("still_host")
@pytest.mark.parametrize("board", [BOARD, "sim:a100-pcie-40gb", "sim:v100-pcie-32gb"])
def test_energy_is_what_the_board_drew_and_windows_add_up(board, workload):
    watched = open_watched(board, "", 5)
    watched.simulated_program(workload)
    block = Measurement({board: watched})
    start_ns = watched.now_ns()
    for _ in range(4):
        with block.window("step"):
            watched.simulated_program(workload)
    true_j = watched.instruments.planted_energy_j(start_ns, watched.now_ns())
    with block.window(None):
        pass
    block.end()
    assert abs(block.energy_j - true_j) < 3.0 * block.energy_std_j
    assert block.energy_std_j < 0.2 * true_j
    step = block.windows["step"]
    assert step.count == 4
    assert step.duration_s == pytest.approx(block.duration_s, rel=0.02)
    assert step.energy_j == pytest.approx(block.energy_j, rel=0.02)
    assert block.power_w == pytest.approx(block.energy_j / block.duration_s)
    row = block.row()
    assert (row["boards"], row["simulated"]) == (board, True)
    assert (row["energy_j"], row["step_energy_j"]) == (block.energy_j, step.energy_j)


def test_functions_tasks_and_errors():
    measuring = measure(gpu=BOARD)

    @measuring
    def step(value):
        return value + 1

    @measuring
    async def later(value):
        await asyncio.sleep(0.3)
        return value + 1

    async def both():
        return await asyncio.gather(later(1), later(2))

    assert (step(1), asyncio.run(both())) == (2, [2, 3])
    assert (len(step.measurements), len(later.measurements)) == (1, 2)
    assert all(one.energy_j > 0.0 for one in later.measurements)

    def fails():
        time.sleep(0.3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), measuring as m:
        fails()
    assert m.energy_j > 0.0
    with pytest.raises(CollectorError, match="generator"):
        measuring(lambda: (yield))
    with pytest.raises(CollectorError, match="no-such"), measure(gpu="sim:no-such"):
        pass
    with measuring as m:
        with pytest.raises(CollectorError, match="in use"), measuring:
            pass
        with pytest.raises(CollectorError, match="not ended"):
            m.energy_j  # noqa: B018 - a property


@pytest.mark.parametrize(
    "arguments, named",
    [
        ({"gpu": print}, r"write @measure\(gpu=0\), with brackets"),
        ({"gpu": 1.5}, "1.5"),
        ({"gpu": True}, "True"),
        ({"gpu": None}, "None"),
        ({"gpu": []}, r"\[\]"),
        ({"gpu": ["0", 2.0]}, "2.0"),
        ({"sensor": 5}, "sensor = 5"),
        ({"seed": "a"}, "seed = 'a'"),
        ({"seed": -3}, "seed = -3"),
    ],
)
def test_arguments_of_another_kind_are_named(arguments, named):
    with pytest.raises(CollectorError, match=named):
        measure(**arguments)


def test_results_are_the_blocks_not_the_measures(workload):
    measuring = measure(gpu=BOARD)
    with measuring as m, pytest.raises(CollectorError, match="no workload file"):
        m.simulated_program(workload.replace(".json", ".py"))
    with pytest.raises(AttributeError, match=r"with measure\(…\) as m"):
        measuring.energy_j  # noqa: B018 - a property


def test_no_window_is_later_than_its_block(workload):
    with measure(gpu=BOARD) as m:
        late = m.window("late")
        late.__enter__()
    late.__exit__(None, None, None)
    assert 0.0 < m.windows["late"].duration_s <= m.duration_s
    for later in (lambda: m.window("b").__enter__(), lambda: m.simulated_program(workload)):
        with pytest.raises(CollectorError, match="has ended"):
            later()


def test_boards_of_one_block_share_its_time(workload):
    """Simulated boards of different pace: a block takes as long as the slowest one, power is that of all, errors are independent."""
    with measure(gpu=["sim:a100-pcie-40gb", "sim:v100-pcie-32gb"]) as m, m.window("run"):
        m.simulated_program(workload)
    own = m.boards.values()
    durations = {one.duration_s for one in own}
    assert max(durations) - min(durations) < 0.05
    assert m.power_w == pytest.approx(sum(one.power_w for one in own), rel=0.02)
    assert m.energy_j == pytest.approx(sum(one.energy_j for one in own))
    assert m.energy_std_j == pytest.approx(math.hypot(*(one.energy_std_j for one in own)))
    assert m.windows["run"].duration_s <= m.duration_s


@pytest.mark.usefixtures("still_host")
def test_steps_between_rest_and_load_are_no_waves(workload):
    """A block of rest, load and rest errs about as its parts together, whether they are windows or not."""
    watched, errors = open_watched("sim:a100-pcie-40gb", "", 5), []
    watched.simulated_program(workload)
    for parts in (("before", "load", "after"), ()):
        block = Measurement({"a": watched})
        for name in ("before", "load", "after"):
            with block.window(name) if name in parts else nullcontext():
                watched.instruments.clock.wait(1.0 if name != "load" else 0.0)
                for _ in range(4 if name == "load" else 0):
                    watched.simulated_program(workload)
        block.end()
        errors.append((block.energy_std_j, sum(one.energy_std_j for one in block.windows.values())))
    assert max(errors)[0] <= 1.6 * errors[0][1]


@pytest.mark.parametrize("length_s", [0.045, 0.3, 0.31, 0.325, 0.34, 0.377])
def test_a_span_may_end_anywhere_within_an_average(length_s):
    begin_s, end_s = (run := np.array([1.0, 1.0 + length_s])) - LAUNCH_LAG_S
    power_w = 50.0 + 200.0 * smoothed(run_cells(run[:1], run[1:], np.ones(1), 0.0, 6000), LAUNCH_RISE_S)
    until = 0.1 * np.arange(1, 31)
    drawn_j = np.interp([*until, begin_s, end_s], GRID_S * np.arange(6001), np.append(0.0, GRID_S * np.cumsum(power_w)))
    averages_w = np.diff(drawn_j[:30], prepend=0.0) / 0.1
    updates = BoardUpdates(time_s=until, value=averages_w, period_s=0.1, time_std_s=0.0, note="")
    response = SensorResponse(kernel="boxcar", width_s=0.1, delay_s=0.0)
    spans = [(np.array([begin_s]), np.array([end_s]))]
    found = deconvolve(updates, response, 0.1, 0.0, 3.0, stamps_s=(begin_s, end_s), parts=spans)
    assert found.parts_j[0] == pytest.approx(drawn_j[-1] - drawn_j[-2], rel=3e-3)
