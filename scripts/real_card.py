"""First calibration of a card that is lent for minutes and whose clocks may not be touched: stages that go on where the last call stopped.

    python3 -m scripts.real_card --call-s 570                                  on the card: what is next, as long as the call lasts
    python3 -m scripts.real_card setup --pieces FOLDER --gpu sim:h100-sxm      off the card: unpack what came back
    python3 -m scripts.real_card fit card compare                              off the card: bundle, summary, comparison
    python3 -m scripts.real_card --gpu sim:board.toml --call-s 570             a rehearsal; the file can plant faults

Results lie in --folder, and after each stage as pieces in $OUT; docs/how-to/lent-card.md has the whole way.  No stage changes a clock, a
power limit or a mode of the card.
"""

import argparse
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final, NotRequired, TypedDict

import click
import numpy as np

from collector.boards import REPLAYED, SIMULATED, named_boards
from collector.errors import CollectorError
from collector.simulated.profile import load_board
from estimator.vocabulary.reader import plain, read_file
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.specifications import canonical_gpu_name
from estimator.vocabulary.whole_file import write_whole
from scripts.card_call import ENDED, NO_TIME, SPARE_S, Call, child_environment, unpack
from scripts.traffic_check import LEVELS

ROOT: Final = Path(__file__).resolve().parent.parent
SITE: Final = Path(gettempdir()) / "wattprint-site"
ANCHORS: Final = "real-card-anchors"
CAMPAIGNS: Final = {"anchors": ANCHORS, "campaign": "real-card", "instructions": "real-card-instructions", "again": ANCHORS}
"""Campaign of each measuring stage; `again` measures the anchors a second time."""
PLANNED_S: Final = 420
"""Board time for which `campaign` chooses its kernels [s]; the others measure all of theirs."""
LEAST_PLANNED_S: Final = 120
WHOLE_S: Final = 3600
SEED: Final = 1
SENSOR_S: Final = 35.0
"""Time of the sensor's loads in a rehearsal [s]."""
MOST_TRIES: Final = 4
"""Processes of a measurement in one call: each hang ends one."""
DONE, PART, FAILED = "done", "part", "failed"
WHOLE: Final = ("latency_s", "power_w", "energy_j")
SENSOR_TIMES: Final = ("update_period_s", "window_s", "window_std_s", "delay_s")
MISSING: Final = "rows are missing"
NO_DATA: Final = "no dataset is there; unpack what came back with setup --pieces FOLDER"
MOST_CALLS: Final = 3
"""Calls in which a stage is tried before the later ones go on without it."""
Document = dict[str, Any]


class Outcome(TypedDict):
    """Where a stage stands: its state, the time it took [s], the calls that tried it, and why it is not done."""

    state: str
    seconds: float
    calls: int
    why: str


class Begun(TypedDict):
    """What a dataset began with: stage, seed and planned time [s]."""

    stage: str
    seed: int
    planned_s: int


class State(TypedDict):
    """All stages, events and datasets, the boards of all calls, and kind and key of the last one."""

    stages: Mapping[str, Outcome]
    events: tuple[str, ...]
    datasets: Mapping[str, Begun]
    boards: tuple[str, ...]
    gpu: NotRequired[str]
    board: NotRequired[str]


@dataclass(slots=True)
class Card:
    """Options, the call, and the state of the stages, which is on disk after each."""

    gpu: str
    stall_s: float
    call: Call
    state: Document

    @property
    def folder(self) -> Path:
        """Folder of the results."""
        return self.call.folder

    @property
    def rehearsal(self) -> bool:
        """Whether no card is there, now or in the calls before."""
        return any(word.startswith((SIMULATED, REPLAYED)) for word in (self.gpu, *self.state["boards"]))

    @property
    def number(self) -> int:
        """Number of the board among those that calls were served by, from 1: a fresh machine may hold another one."""
        return int(self.state["boards"].index(self.state["board"])) + 1

    @property
    def sensor(self) -> list[str]:
        """The option that names the characterised sensor of this board, if there is one."""
        known = self.folder / f"sensor-{self.number}.json"
        return ["--sensor", str(known)] if known.exists() else []

    @property
    def settings(self) -> Document:
        """What the first look decided; cautious values without one."""
        found = self.read("smoke.json").get("settings")
        return found or {"poll_ms": 5.0, "trace": False, "timed_s": 0.2}

    def read(self, name: str) -> Document:
        """A result; empty where it is missing or damaged."""
        try:
            found: Any = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def take_state(self) -> None:
        """Goes on from the state on disk.  Raises CollectorError for a damaged one."""
        path = self.folder / "state.json"
        if path.exists():
            try:
                self.state |= plain(read_file(State, path, "state", CollectorError))
            except CollectorError as error:
                raise CollectorError(f"{error}; unpack the last pieces again, or delete it: stages begin again, rows stay") from error

    def python(self, name: str, limit_s: float, *words: str, stall_s: float = math.inf) -> str:
        """Runs a module's command; "" or why it is not done."""
        return self.call.run(name, [sys.executable, "-m", *words], limit_s, stall_s)

    def save(self) -> None:
        """Writes the state."""
        write_whole(self.folder / "state.json", (json.dumps(self.state, indent=1) + "\n").encode())

    def recording(self, name: str) -> str:
        """A free file for a recording."""
        folder = self.folder / "recordings"
        folder.mkdir(exist_ok=True)
        return str(folder / f"{name}-{1 + len(list(folder.glob(f'{name}-*')))}.recording")


def smoke(card: Card) -> str:
    """The first look, which decides the settings of all later stages."""
    words = ("scripts.card_smoke", "--gpu", card.gpu, "--folder", str(card.folder))
    why = card.python("first-look", 300.0, *words)
    card.call.simulated_s += float(card.read("smoke.json").get("simulated_s", 0.0))
    return why


def doctor(card: Card) -> str:
    """Obstacles to measuring."""
    return card.python("doctor", 60.0, "collector.cli", "doctor", "--gpu", card.gpu, "--json")


def sensor(card: Card, stage: str, seed: int) -> str:
    """The power sensor."""
    command = ("collector.cli", "sensor", "--gpu", card.gpu, "--freq", "current", "--record", card.recording(stage), "--json")
    out = card.folder / f"{stage}-{card.number}.json"
    words = ("--seed", str(seed), "--poll-ms", str(card.settings["poll_ms"]), "--force", "--out", str(out))
    why = card.python(f"{stage}-run", 200.0, *command, *words)
    if card.rehearsal:
        card.call.simulated_s += SENSOR_S + startup_s(card)
    return why


def startup_s(card: Card) -> float:
    """Planted time to open a board, which a rehearsal counts for each process [s]."""
    return load_board(card.gpu.removeprefix(SIMULATED)).faults.startup_s


def campaign_file(card: Card, name: str) -> Path:
    """The campaign with the timed runs that the first look decided."""
    path = card.folder / f"{name}.toml"
    if not path.exists():
        text = (resource_folder("campaigns") / f"{name}.toml").read_text(encoding="utf-8")
        write_whole(path, text.replace("[measurement]", f"[measurement]\ntimed_s = {card.settings['timed_s']:g}", 1).encode())
    return path


def dataset(card: Card, stage: str) -> tuple[Path, Document]:
    """Where a campaign's rows go on this board, and the seed and planned time that it began with.

    Rows of another board, or of this one while its sensor was unknown, stay in a dataset of their own.
    The next dataset of `campaign` draws other kernels, for the time that the earlier ones left over.
    """
    name = f"{stage}-{card.number}{'' if card.sensor else '-no-sensor'}"
    earlier = sum(one["stage"] == stage for one in card.state["datasets"].values())
    begun = {"stage": stage, "seed": SEED, "planned_s": WHOLE_S}
    if stage == "campaign":
        spent_s = card.state["stages"].get(stage, {}).get("seconds", 0.0)
        begun |= {"seed": SEED + earlier, "planned_s": max(LEAST_PLANNED_S, PLANNED_S - round(spent_s))}
    return card.folder / f"{name}.parquet", card.state["datasets"].setdefault(name, begun)


def measure(card: Card, stage: str) -> str:
    """A campaign with the budget that the call has left; it goes on in the next call, and after a hang or a lost context in this one."""
    (out, begun), why = dataset(card, stage), ""
    card.save()
    for _ in range(MOST_TRIES):
        budget_s = int(card.call.left_s() - SPARE_S)
        if budget_s < STAGES[stage].least_s - SPARE_S:
            return why or NO_TIME
        there = out.exists() or any(card.folder.glob(f"{out.name}.log*"))
        before = _changes(out)
        words = [
            *("collector.cli", "--gpu", card.gpu, "--freqs", "current", "--campaign", str(campaign_file(card, CAMPAIGNS[stage]))),
            *("--budget", f"{budget_s}s", "--planned-budget", f"{begun['planned_s']}s", "--seed", str(begun["seed"]), "--json"),
            *("--poll-ms", str(card.settings["poll_ms"]), *([] if card.settings["trace"] else ["--no-trace"])),
            *card.sensor,
            *(["--resume"] if there else []),
            *("--out", str(out), "--record", card.recording(stage)),
        ]
        why = card.python(stage, budget_s + SPARE_S, *words, stall_s=card.stall_s)
        found = card.read(f"{stage}.json")
        if card.rehearsal:
            card.call.simulated_s += float(found.get("board_time_s", 0.0)) + startup_s(card)
        if not why or why == "time limit":
            break
        card.state["events"].append(f"{stage}: {why}")
        if why.startswith(ENDED) and _changes(out) == before:
            break  # neither a row nor a kernel under suspicion: another process would end like this one
    missing = found.get("rows_missing")
    return why or (f"{missing} {MISSING}" if missing else "")


def _changes(out: Path) -> dict[str, int]:
    """When the files of a dataset were written [ns]."""
    return {path.name: path.stat().st_mtime_ns for path in out.parent.glob(f"{out.name}*")}


def tests(card: Card) -> str:
    """The tests on hardware; a kernel that breaks the context ends the run, and the next call passes over it."""
    if card.rehearsal:
        return ""
    killers = card.folder / "tests-killers.txt"
    card.call.environment = {**card.call.environment, "WATTPRINT_KILLERS": str(killers.resolve())}
    return card.python("hardware-tests", 240.0, "pytest", "-q", "-m", "gpu", "tests/hardware", "-p", "no:cacheprovider")


def shipped(card: Card) -> str:
    """The shipped bundle of this GPU."""
    return canonical_gpu_name(card.state.get("gpu", "")) or "h100-sxm"


def bundle(card: Card) -> str:
    """The bundle of this card, before its fit the shipped one of its GPU."""
    own = card.folder / "bundle.json"
    return str(own) if own.exists() else shipped(card)


def models(card: Card) -> str:
    """Whole models, measured and estimated."""
    words = ["--gpu", card.gpu, "--bundle", bundle(card), "--folder", str(card.folder / "models")]
    words += ["--rehearse"] if card.rehearsal else []
    return card.python("models", 330.0, "scripts.end_to_end", *words, *card.sensor)


def traffic(card: Card) -> str:
    """Bytes that the hardware counts beside the estimator's; counting slows kernels, so nothing else is measured meanwhile."""
    if card.rehearsal:
        return ""
    kernels, counters = str(card.folder / "traffic-kernels.json"), str(card.folder / "counters.csv")
    if why := card.python("traffic-choose", 60.0, "scripts.traffic_check", "choose", kernels):
        return why
    metrics = ",".join(counter for level in LEVELS.values() for counter in level)
    profile = ["ncu", "--clock-control", "none", "--cache-control", "all", "--profile-from-start", "off", "--csv"]
    profile += ["--target-processes", "all", "--metrics", metrics, "--log-file", counters]
    launch = [sys.executable, "-m", "scripts.traffic_check", "launch", kernels, "--gpu", card.gpu]
    why = card.call.run("traffic-count", [*profile, *launch], 200.0)
    told = ("scripts.traffic_check", "compare", kernels, counters, "--bundle", bundle(card), "-o", str(card.folder / "traffic.json"))
    return why or card.python("traffic-compare", 60.0, *told)


def datasets_of(card: Card, *stages: str) -> list[Path]:
    """The datasets of stages, in the order in which they began; not each need be there."""
    return [card.folder / f"{name}.parquet" for name, one in card.state["datasets"].items() if one["stage"] in stages]


def fit(card: Card) -> str:
    """The bundle of all datasets, an unfinished one by its rows so far; needs no card."""
    from collector.dataset.reader import log_path

    datasets = []
    for finished in datasets_of(card, "anchors", "campaign", "instructions"):  # the second anchors stay unseen
        log, so_far = log_path(finished), finished.with_name(f"{finished.stem}-so-far.parquet")
        if log.exists() and not card.python(
            "export", 120.0, "collector.cli", "export", str(log), "--to", "parquet", "--force", "--out", str(so_far)
        ):
            datasets.append(str(so_far))
        elif finished.exists():
            datasets.append(str(finished))
    if not datasets:
        return NO_DATA
    out = ("-o", str(card.folder / "bundle.json"), "--report", str(card.folder / "report.html"), "--json", "--seed", str(SEED))
    return card.python("fit", 900.0, "fitter.cli", *datasets, "--force", *out)


def measured_models(card: Card) -> Document:
    """Whole models that were measured on the card, by name."""
    found: Document = card.read("models/end-to-end.json").get("models", {})
    return found


def compare(card: Card) -> str:
    """Both measurements of the anchors, the shipped bundle of this GPU on this card's rows, whole models by the new bundle."""
    whys = []
    anchors = [path for path in datasets_of(card, "anchors", "again") if path.exists()]
    for second in anchors[1:]:
        words = ("scripts.anchor_check", str(anchors[0]), str(second), "-o", str(card.folder / f"agreement-{second.stem}.json"))
        whys.append(card.python(f"anchor-check-{second.stem}", 60.0, *words))
    rows = [str(path) for path in datasets_of(card, "campaign") if path.exists()]
    if rows and not card.rehearsal:  # no bundle of a simulated board is shipped
        whys.append(card.python("shipped", 300.0, "fitter.cli", "check", shipped(card), *rows, "--json"))
    for name in measured_models(card):
        words = ("estimator.cli", str(card.folder / "models" / f"{name}.json"), "--bundle", bundle(card), "--json")
        whys.append(card.python(f"model-{name}", 60.0, *words))
    return "; ".join(filter(None, whys)) if whys else NO_DATA


def summary(card: Card) -> str:
    """Writes card.md: what was seen, decided and survived."""
    from scripts.card_smoke import lines_of

    found, fitted = card.read("smoke.json"), card.read("fit.json")
    lines = ["# Card", "", *(f"* {line}" for line in (lines_of(found) if found else ["no first look"]))]
    for name, one in card.state["stages"].items():
        lines.append(f"* {name}: {one['state']} after {one['seconds']:.0f} s{': ' + one['why'] if one['why'] else ''}")
    lines += [f"* survived: {event}" for event in card.state["events"]]
    for stage, number in product(("sensor", "sensor-again"), range(1, len(card.state["boards"]) + 1)):
        if one := card.read(f"{stage}-{number}.json"):
            told = ", ".join(f"{name[:-2]} {1e3 * one[name]:.2f} ms" for name in SENSOR_TIMES if one.get(name) is not None)
            lines.append(f"* {stage} of board {number}: {one['averaging']}; {told}")
    for stage in CAMPAIGNS:
        one = card.read(f"{stage}.json")
        if one:
            lines.append(f"* {stage}: {one['rows']} of {one['rows_planned']} rows; flags {one['flags']}; without a row {one['rejected']}")
    for path in sorted(card.folder.glob("agreement-*.json")):
        one = card.read(path.name)
        lines.append(f"* {path.stem}: energy differs by {one['energy']['mean']:.2%} on average of {one['kernels']} kernels")
    for level, families in card.read("traffic.json").items():
        lines.append(f"* bytes at {level}, estimated over counted: {families['all']}")
    for figure in ("latency", "power"):
        errors = np.array([(one[figure]["n"], one[figure]["mape"]) for one in fitted.get("errors", []) if one.get(figure)]).reshape(-1, 2)
        if errors.size:
            mean, rows = np.average(errors[:, 1], weights=errors[:, 0]), errors[:, 0].sum()
            lines.append(f"* {figure}: mean error {mean:.1f} % on {rows:.0f} rows held out of the fit")
    for name, one in measured_models(card).items():
        new = card.read(f"model-{name}.json")
        off = [f"{figure} {100.0 * (new[figure] / one[f'measured_{figure}'] - 1.0):+.1f} %" for figure in WHOLE if figure in new]
        lines.append(f"* {name}, estimated by this bundle over measured: {', '.join(off)}")
    write_whole(card.folder / "card.md", ("\n".join(lines) + "\n").encode())
    click.echo("\n".join(lines))
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage: its work, which returns "" or why it is not done; it begins only with `least_s` left of the call."""

    work: Callable[[Card], str]
    least_s: float
    on_card: bool = True


STAGES: Final[dict[str, Stage]] = {
    "smoke": Stage(work=smoke, least_s=100.0),
    "doctor": Stage(work=doctor, least_s=40.0),
    "sensor": Stage(work=lambda card: sensor(card, "sensor", SEED), least_s=90.0),
    "anchors": Stage(work=lambda card: measure(card, "anchors"), least_s=120.0),
    "campaign": Stage(work=lambda card: measure(card, "campaign"), least_s=150.0),
    "models": Stage(work=models, least_s=120.0),
    "again": Stage(work=lambda card: measure(card, "again"), least_s=120.0),
    "sensor-again": Stage(work=lambda card: sensor(card, "sensor-again", SEED + 1), least_s=90.0),
    "traffic": Stage(work=traffic, least_s=170.0),
    "instructions": Stage(work=lambda card: measure(card, "instructions"), least_s=120.0),
    "tests": Stage(work=tests, least_s=100.0),
    "fit": Stage(work=fit, least_s=0.0, on_card=False),
    "compare": Stage(work=compare, least_s=0.0, on_card=False),
    "card": Stage(work=summary, least_s=0.0, on_card=False),
}
"""What is worth most comes first; a call without a name goes through those on the card."""


def setup(card: Card, given: argparse.Namespace) -> str:
    """Unpacks what came back and installs the wheels that travelled."""
    if given.pieces is not None:
        unpack(given.pieces, card.folder)
    card.take_state()
    wheels = sorted(map(str, card.folder.glob("wheels/*.whl")))
    if wheels and not card.rehearsal and not SITE.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade"]
        return card.call.run("setup", [*pip, "--target", str(SITE), *wheels], 90.0)
    return ""


def took_board(card: Card) -> str:
    """Notes the board that serves this call; "" or why its rows do not belong to those of earlier calls.

    Raises CollectorError without a board.
    """
    board = named_boards((card.gpu,))[0]
    known, boards = card.state.setdefault("gpu", board.name), card.state["boards"]
    if known != board.name or any(one.startswith(SIMULATED) is not board.simulated for one in boards):
        held = f"{card.folder} holds results of {known} ({', '.join(boards)})"
        return f"this board is {board.name} ({board.key}), {held}; ask for the same kind, or name another --folder"
    card.state["board"] = board.key
    if board.key not in boards:
        boards.append(board.key)
    return ""


def over(card: Card, name: str) -> bool:
    """Whether calls pass over a stage: it is done, or it was tried often enough.  Each board needs its own sensor, the fourth one too."""
    one = card.state["stages"].get(name, {"state": PART, "calls": 0})
    if name == "sensor" and one["state"] == DONE:
        return bool(card.sensor)
    return bool(one["calls"] >= MOST_CALLS or one["state"] == DONE)


def went_through(card: Card, names: Sequence[str]) -> bool:
    """Runs stages as long as the call has time, packs after each; returns whether all are done."""
    for name in names:
        stage, known = STAGES[name], card.state["stages"].get(name, {"seconds": 0.0, "calls": 0})
        left_s = card.call.left_s()
        begins = left_s >= stage.least_s or not stage.on_card
        why = stage.work(card) if begins else NO_TIME
        state = (PART if NO_TIME in why or MISSING in why else FAILED) if why else DONE
        seconds = known["seconds"] + left_s - card.call.left_s()
        card.state["stages"][name] = {"state": state, "seconds": round(seconds, 1), "calls": known["calls"] + begins, "why": why}
        card.save()
        click.echo(f"== {name}: {state}{': ' + why if why else ''}; {card.call.left_s():.0f} s left of the call")
        if stage.on_card:
            card.call.pack()
    return all(card.state["stages"][name]["state"] == DONE for name in names)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 if all asked stages are done, 3 if some are not, 1 if it cannot begin."""
    parser = argparse.ArgumentParser(prog="real_card", description="First calibration of a lent card.", allow_abbrev=False)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"setup, {', '.join(STAGES)}; without one: what is next on the card")
    parser.add_argument("--call-s", type=_seconds, default=3600.0, help="time of this call [s]")
    parser.add_argument("--gpu", default="0", help="the board; sim:h100-sxm for a rehearsal")
    parser.add_argument("--folder", type=Path, default=Path("build/real-card"), help="results")
    parser.add_argument("--out", type=Path, default=Path(os.environ["OUT"]) if os.environ.get("OUT") else None, help="where pieces go")
    parser.add_argument("--pieces", type=Path, help="folder of pieces that came back (setup)")
    parser.add_argument("--stall-s", type=_seconds, default=120.0, help="a measurement that writes nothing for so long hangs [s]")
    given = parser.parse_args(words)
    if unknown := [name for name in given.stages if name not in ("setup", *STAGES)]:
        parser.error(f"no stage is called {unknown[0]}; stages: setup, {', '.join(STAGES)}")
    try:
        given.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(given.folder, os.O_RDONLY)
    except OSError as error:
        click.echo(f"real_card: {given.folder}: {error.strerror or error}; name another --folder", err=True)
        return 1
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _work(given)
    except BlockingIOError:
        click.echo(f"real_card: {given.folder}: another real_card works there; wait for it, or name another --folder", err=True)
        return 1
    except KeyboardInterrupt:
        click.echo("real_card: interrupted; the same command goes on", err=True)
        return 130
    finally:
        os.close(lock)


def _work(given: argparse.Namespace) -> int:
    """The asked stages; returns as `main`."""
    call = Call(given.folder, given.call_s, child_environment(ROOT, SITE), time.monotonic(), given.out)
    card = Card(gpu=given.gpu, stall_s=given.stall_s, call=call, state={"stages": {}, "events": [], "datasets": {}, "boards": []})
    try:
        why = setup(card, given)
        if why:
            click.echo(f"== setup: {why}; goes on without")
        names = [name for name in given.stages if name != "setup"] or ([] if given.stages else [*STAGES])
        on_card = [name for name in names if STAGES[name].on_card]
        if on_card and (why := took_board(card)):
            click.echo(f"real_card: {why}", err=True)
            return 1
    except subprocess.CalledProcessError:
        click.echo(f"real_card: {given.pieces}: holds no whole results.tar.gz.00 and following", err=True)
        return 1
    except CollectorError as error:
        click.echo(f"real_card: {error}", err=True)
        return 1
    if not given.stages:
        names = [name for name in on_card if not over(card, name)]
    return 0 if went_through(card, names) else 3


def _seconds(text: str) -> float:
    """A positive time [s].  Raises ValueError."""
    if not (found := float(text)) > 0.0:
        raise ValueError(text)
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
