"""A campaign in a process of its own, to be interrupted: a simulated board whose clock is that of the stand-in for NVML."""

import itertools
import json
import math
import os
import resource
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from collector.bench import open_bench, open_simulated
from collector.campaigns.files import load_campaign
from collector.campaigns.plan import plan_campaign
from collector.campaigns.running import Campaign, campaign_key, kept_rows
from collector.commands.output import stoppable
from collector.dataset.writer import claimed_dataset
from collector.devices.nvml import open_board
from collector.devices.protocols import Bench
from collector.errors import CollectorError
from collector.pmd.sensor import open_pmd
from collector.sensing.calibration import load_calibration
from estimator import load_gpu
from tests.collector.campaigns import ANCHORED_HEAD, softmax_of_many_sizes

BOARD = "a100-pcie-40gb"
CLOCKS = (510.0, 1200.0)
SEED = 7
INTERRUPTED = 130
DONE = "done"
"""Told last: a signal after that may find its handler gone."""

CAMPAIGN = ANCHORED_HEAD + softmax_of_many_sizes(9)


@dataclass(frozen=True)
class Order:
    """What a process shall do.

    `file_limit_bytes` stands for a full disk where it is set, `fail` names a phase in which it raises.  After its event number
    `hold_after` it waits until it may go on, so that what is done to it then is not done too late; 0: it never waits.
    """

    output: Path
    campaign: Path
    sensor: Path | None
    stub: Path
    state: Path
    meter_port: str = ""
    file_limit_bytes: int | None = None
    budget_s: float = math.inf
    fail: str = ""
    hold_after: int = 0


class ClockedBoard:
    """A simulated board whose clock the driver's stand-in holds too; everything else of Gpu is the simulated one's."""

    def __init__(self, simulated, driver):
        self._simulated, self._driver = simulated, driver

    def __getattr__(self, name):
        return getattr(self._simulated, name)

    def state(self):
        self._driver.state()  # raises where the board has gone
        return self._simulated.state()

    def lock_clock_mhz(self, sm_clock_mhz):
        self._driver.lock_clock_mhz(sm_clock_mhz)
        self._simulated.lock_clock_mhz(sm_clock_mhz)

    def unlock_clock(self):
        self._simulated.unlock_clock()
        self._driver.unlock_clock()


def the_plan(campaign):
    """What a process measures."""
    with open_bench(f"sim:{BOARD}", seed=SEED) as bench:
        return plan_campaign(load_campaign(str(campaign)), CLOCKS, (), SEED, bench)


def run_process(told, order):
    """The whole life of the process: resume or begin, measure, tell of every row that is on disk, end like the command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would keep it ignored
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))

    os.environ.update(WATTPRINT_NVML_STUB=str(order.stub), WATTPRINT_STATE=str(order.state))

    def tell(*message):
        told.send_bytes(json.dumps(message).encode())

    events = itertools.count(1)

    def report(progress):
        if order.fail and order.fail in (progress.phase, "row" if progress.row else ""):
            raise ZeroDivisionError
        tell("row", progress.row["row_id"]) if progress.row else tell("phase", progress.phase)
        if next(events) == order.hold_after:
            told.recv_bytes()

    status, message = 0, ""
    try:
        with stoppable(order.output):
            _measure(order, report)
            tell("phase", DONE)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except CollectorError as error:
        status, message = 1, str(error)
    tell("end", status, message)
    told.close()
    sys.exit(status)


def _measure(order, report):
    with ExitStack() as stack:
        driver = stack.enter_context(open_board("0"))
        board = stack.enter_context(open_simulated(BOARD, seed=SEED))
        meters = (stack.enter_context(open_pmd(order.meter_port)),) if order.meter_port else ()
        bench = Bench(
            word="0",
            gpu=ClockedBoard(board.gpu, driver.gpu),
            sensors=(board.sensor, *meters),
            runner=board.runner,
            clock=board.clock,
            gpu_spec=load_gpu(BOARD),
            simulated=True,
        )
        spec = load_campaign(str(order.campaign))
        calibration = load_calibration(order.sensor) if order.sensor else None
        plan = plan_campaign(spec, CLOCKS, (), SEED, bench, sensor=calibration)
        key = campaign_key(bench, spec, plan, (), SEED)
        if order.file_limit_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (order.file_limit_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        stack.enter_context(claimed_dataset(order.output))
        Campaign(
            bench,
            spec,
            plan,
            key,
            order.output,
            kept=kept_rows(order.output, key),
            calibration=calibration,
            budget_s=order.budget_s,
            report=report,
        ).run()
