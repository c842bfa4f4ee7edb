"""Interrupts campaigns and holds what is left against what was promised."""

import json
import multiprocessing
import os
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from collector.bench import open_bench
from collector.dataset.reader import log_path, read_kernel_dataset, read_log
from collector.devices.clock_record import left_records
from collector.sampling import Sampler
from collector.sensing.live import characterise_sensor
from tests.collector.interruption.campaign_process import BOARD, CAMPAIGN, DONE, Order, run_process, the_plan
from tests.collector.nvml.stub import GPU_LOST, Boards, built
from tests.collector.pmd.conftest import emulated_port

WITHIN_S = 2.0
"""A clock is to be back within this after its holder's end; benchmarks/kill_campaign.py measures that, tests only that it comes back."""
PATIENCE_S = 600.0
LATEST_S = 0.03
"""A blow falls up to so long after the event that it follows."""
LONGEST_PLUGGED_S = 2.0
CHARACTERISED = 0.1
"""Share of campaigns that look for their sensor first."""
PHASES = 3
"""Events of a campaign beside its rows: warming up, measuring, power at rest again."""
PRELOADED = ["tests.collector.interruption.campaign_process", "pandas"]
"""What every process has from its beginning; Arrow loads pandas with the first rows, where there is one."""


@dataclass
class Tally:
    """What was seen over all blows: times until clocks were back [s], rows told of, of them lost and doubled, campaigns brought to
    their end.
    """

    blows: int = 0
    clocks_back_s: list[float] = field(default_factory=list)
    locked_when_hit: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    finished: int = 0
    at: dict[str, int] = field(default_factory=dict)


@dataclass
class Arena:
    """Where campaigns run: the stand-in's boards, folders, how processes are started, and the ids of the rows to come."""

    folder: Path
    boards: Boards
    context: ForkServerContext
    campaign: Path
    sensor: Path
    planned: list[str]
    processes: list[BaseProcess] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    @property
    def state(self):
        return self.folder / "state"

    def order(self, output, **changes):
        details = {"sensor": self.sensor, "stub": self.boards.path, "state": self.state, **changes}
        return Order(output=output, campaign=self.campaign, **details)


@contextmanager
def open_arena(folder):
    """An arena in an empty folder; its server of processes ends with it."""
    boards = Boards(folder / "boards")
    changes = {
        "LD_LIBRARY_PATH": str(built(folder)),
        "WATTPRINT_NVML_STUB": str(boards.path),
        "WATTPRINT_STATE": str(folder / "state"),
    }
    before = {name: os.environ.get(name) for name in changes}
    campaign = folder / "campaign.toml"
    campaign.write_text(CAMPAIGN)
    sensor = folder / "sensor.json"
    with open_bench(f"sim:{BOARD}", seed=1, meter=True) as bench:
        bench.gpu.lock_clock_mhz(900)
        sensor.write_text(json.dumps(characterise_sensor(bench, Sampler(bench.gpu, bench.sensors)).document()))
    planned = [point.row_id for point in the_plan(campaign).points]
    context = multiprocessing.get_context("forkserver")
    os.environ.update(changes)  # a server of processes takes its environment when it starts
    try:
        context.set_forkserver_preload(PRELOADED)
        arena = Arena(folder=folder, boards=boards, context=context, campaign=campaign, sensor=sensor, planned=planned)
        try:
            yield arena
        finally:
            for process in arena.processes:  # one that a failed test has left: its server would wait for it
                process.kill()
                process.join()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        with suppress(AttributeError):
            multiprocessing.forkserver._forkserver._stop()


class Contestant:
    """A campaign's process."""

    def __init__(self, arena, order):
        self._ear, mouth = arena.context.Pipe()
        self.process = arena.context.Process(target=run_process, args=(mouth, order))
        self.process.start()
        arena.processes.append(self.process)
        mouth.close()
        self.events = []
        self.rows = []
        self.message = ""
        self.silent = False

    def listen(self, wanted):
        """Hear so many events, or until it speaks no more."""
        while len(self.events) < wanted and not self.silent:
            if not self._ear.poll(PATIENCE_S):
                raise TimeoutError("a campaign's process says nothing")
            try:
                kind, *rest = json.loads(self._ear.recv_bytes())
            except (EOFError, OSError):
                self.silent = True
                return
            self.events.append(kind if kind == "row" else " ".join(map(str, (kind, *rest[:1]))))
            if kind == "row":
                self.rows.append(rest[0])
            elif kind == "end":
                self.message = rest[1]

    def go_on(self):
        """Let one that is held go on; harmless where it has ended."""
        with suppress(OSError):
            self._ear.send_bytes(b"go on")

    def end(self):
        """Its exit status, once it has ended and everything it said was heard."""
        self.listen(1 << 30)
        self.process.join(PATIENCE_S)
        status = self.process.exitcode
        assert status is not None, "a campaign's process does not end"
        self._ear.close()
        return status


def strike(arena, contestant, chance, blow, most, least=0):
    """Let a blow fall after one of a campaign's events, chosen at random."""
    contestant.listen(chance.randint(least, most))
    time.sleep(chance.uniform(0.0, LATEST_S))
    after = contestant.events[-1] if contestant.events else "start"
    arena.tally.at[after] = arena.tally.at.get(after, 0) + 1
    arena.tally.locked_when_hit += arena.boards.get("lock_high") > 0
    arena.tally.blows += 1
    blow()


def clock_back_s(arena, since_s):
    """How long after `since_s` the clock was back, the record of it gone."""
    while arena.boards.get("lock_high") or left_records(arena.state):
        if time.monotonic() - since_s > PATIENCE_S:
            raise TimeoutError("the clock is still held")
        time.sleep(0.002)
    return time.monotonic() - since_s


def check_left(arena, output, told):
    """What lies on disk after a blow: every row that was told of, once; at most one more, the one in hand."""
    tally = arena.tally
    log = log_path(output)
    if log.is_file():
        table = read_log(log).table
    elif output.is_file():
        table = read_kernel_dataset(output).table
    else:
        tally.lost += len(told)
        assert not told, f"{len(told)} rows were told of, and nothing is there"
        return
    ids = table.column("row_id").to_pylist()
    tally.lost += len(told - set(ids))
    tally.doubled += len(ids) - len(set(ids))
    assert len(ids) == len(set(ids)), "a row is there twice"
    assert told <= set(ids), f"rows are lost: {told - set(ids)}"
    assert len(set(ids) - told) <= 1, "more rows than were measured"


def check_finished(arena, output):
    """A campaign that came to its end has the rows of an undisturbed one, and left nothing else."""
    dataset = read_kernel_dataset(output)
    assert dataset.table.column("row_id").to_pylist() == arena.planned
    assert dataset.metadata["complete"]
    left = {path.name for path in output.parent.iterdir()} - {output.name}
    assert not left, f"left behind: {left}"
    arena.tally.finished += 1


def told_rows(output):
    """Rows on disk now: what a resumed process need not tell of again."""
    for path, read in ((log_path(output), read_log), (output, read_kernel_dataset)):
        if path.is_file():
            return set(read(path).table.column("row_id").to_pylist())
    return set()


def bring_to_end(arena, output, told):
    """Resume without a blow."""
    contestant = Contestant(arena, arena.order(output))
    status = contestant.end()
    assert status == 0, contestant.message
    arena.tally.doubled += len(told & set(contestant.rows))
    assert not told & set(contestant.rows), "a finished row was measured again"
    check_finished(arena, output)


def bout(arena, number, chance, *, ending=signal.SIGKILL, blows):
    """One campaign, resumed after every blow until it comes to its end or so many blows have fallen; the blows that fell."""
    folder = arena.folder / f"bout-{number}"
    folder.mkdir()
    output, told, fallen = folder / "d.parquet", set(), 0
    events = len(arena.planned) + PHASES
    while fallen < blows:
        sensor = None if chance.random() < CHARACTERISED else arena.sensor
        contestant = Contestant(arena, arena.order(output, sensor=sensor))
        struck = []

        def blow(contestant=contestant, struck=struck):
            struck.append(time.monotonic())
            with suppress(ProcessLookupError):
                os.kill(contestant.process.pid or 0, ending)

        strike(arena, contestant, chance, blow, events - len(told))
        status = contestant.end()
        fallen += 1
        arena.tally.clocks_back_s.append(clock_back_s(arena, struck[0] if status else time.monotonic()))
        arena.tally.doubled += len(told & set(contestant.rows))
        assert not told & set(contestant.rows), "a finished row was measured again"
        told |= set(contestant.rows)
        arena.tally.rows += len(contestant.rows)
        check_left(arena, output, told)
        told = told_rows(output)
        if status == 0:
            check_finished(arena, output)
            return fallen
        assert status in ended_by(ending, contestant), f"exit status {status}: {contestant.message}"
    bring_to_end(arena, output, told)
    return fallen


def ended_by(ending, contestant):
    """Exit statuses that a signal may give: 130 within the command, the signal's own before it has begun and after its end.

    A child that Ctrl-C ends while Python's server of processes still starts it has that server's 1.
    """
    outside = not contestant.events or contestant.events[-1] == f"phase {DONE}" or contestant.events[-1].startswith("end")
    if ending == signal.SIGKILL:
        return {-ending}
    unborn = {1} if ending == signal.SIGINT and not contestant.events else set()
    return {130, -ending, *unborn} if outside else {130}


def check_failure(arena, contestant, output, reason, repair=lambda: None):
    """A campaign that something befell says so in one line or was over; its clock is back, no row is lost, the rest follows."""
    status = contestant.end()
    repair()
    arena.tally.clocks_back_s.append(clock_back_s(arena, time.monotonic()))
    told = set(contestant.rows)
    arena.tally.rows += len(told)
    if status == 0:
        check_finished(arena, output)
        return
    assert status == 1, f"exit status {status}"
    assert reason in contestant.message, contestant.message
    assert "\n" not in contestant.message
    check_left(arena, output, told)
    bring_to_end(arena, output, told_rows(output))


def lose_board(arena, number, chance):
    """The board falls off the bus in the middle and comes back: the campaign ends with one line, the clock comes back with the board."""
    folder = arena.folder / f"lost-{number}"
    folder.mkdir()
    output = folder / "d.parquet"
    hold_after = chance.randint(1, len(arena.planned))
    contestant = Contestant(arena, arena.order(output, hold_after=hold_after))

    def blow():
        arena.boards.set(fail_all=GPU_LOST)
        contestant.go_on()

    strike(arena, contestant, chance, blow, hold_after, hold_after)
    check_failure(arena, contestant, output, "", lambda: arena.boards.set(fail_all=0))


def fill_disk(arena, number, chance, folder=None):
    """The disk fills up at some byte: one line that says so, nothing lost, the rest goes on when there is room.

    `folder` is a small file system; without one a limit on the size of files stands for it.
    """
    place = (folder or arena.folder) / f"full-{number}"
    place.mkdir()
    output, filler = place / "d.parquet", place / ".filler"
    limit = chance.randrange(3_000, 60_000)
    if folder is not None:
        free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        filler.write_bytes(bytes(max(0, free - limit)))
    contestant = Contestant(arena, arena.order(output, file_limit_bytes=None if folder else limit))
    arena.tally.blows += 1
    check_failure(arena, contestant, output, "cannot be written", lambda: filler.unlink(missing_ok=True))
    output.unlink()  # a small disk is for the next one


def unplug_meter(arena, number, chance):
    """The external meter is pulled out in the middle: one line that says so, nothing lost, and the rest without it."""
    folder = arena.folder / f"unplugged-{number}"
    folder.mkdir()
    output = folder / "d.parquet"
    with emulated_port(unplug_s=chance.uniform(0.3, LONGEST_PLUGGED_S)) as port:
        contestant = Contestant(arena, arena.order(output, meter_port=port.path))
        contestant.listen(1 << 30)
    arena.tally.blows += 1
    check_failure(arena, contestant, output, port.path)
