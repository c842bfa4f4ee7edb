"""`collect` without a command: a campaign on one board, or side by side on several."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from collector.commands.options import (
    SIMULATED_METER,
    asked_clocks,
    duration_s,
    given_words,
    meter_arguments,
    one_board,
    perhaps_recorded,
    sensor_of,
)
from collector.commands.output import Speaker, stoppable
from collector.errors import CollectorError
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, FAILED, INTERRUPTED, WRONG_USAGE, refuse_inputs, tell
from estimator.vocabulary.values import frozen

if TYPE_CHECKING:
    from collector.boards import BoardName
    from collector.campaigns.files import CampaignSpec
    from collector.campaigns.plan import CampaignPlan
    from collector.campaigns.running import CampaignOutcome, Progress
    from collector.daemon.worker import End
    from collector.devices.protocols import Bench
    from collector.sensing.calibration import SensorCalibration

OWN_OPTIONS: Final = frozenset({"gpu", "out", "dry_run", "as_json", "quiet", "verbose", "worker", "record"})
"""Options of `collect` with another meaning for one board of several."""
NEXT: Final = "next: "


@frozen
class CampaignOptions:
    """The options of `collect`."""

    gpu: str
    freqs: str
    out: str
    campaign: str
    families: str | None
    budget: str
    planned_budget: str
    gpu_spec: str
    sensor: str | None
    pmd: str
    resume: bool | None
    seed: int
    record: Path | None
    no_trace: bool
    poll_ms: float
    dry_run: bool
    strict: bool
    worker: bool

    def budget_s(self, usual_s: float = math.inf) -> float:
        """The board's time [s], without --budget the usual one.  Raises BadParameter."""
        return duration_s(self.budget, "--budget") if self.budget else usual_s

    def chosen_families(self) -> tuple[str, ...]:
        """Names of families; empty for all.  Raises BadParameter for a list without a name."""
        chosen = tuple(dict.fromkeys(name.strip() for name in (self.families or "").split(",") if name.strip()))
        if self.families is not None and not chosen:
            raise click.BadParameter(f"{self.families!r} names no family; leave the option out for all", param_hint="--families")
        return chosen


def measure_campaign(options: CampaignOptions, speak: Speaker) -> int:
    """Plans, measures and sums up; returns the exit status."""
    from collector.bench import open_bench
    from collector.boards import several, sole_use
    from collector.campaigns.display import outcome_lines, plan_document, plan_lines
    from collector.campaigns.files import load_campaign
    from collector.daemon.reporting import told_errors
    from collector.dataset.reader import log_path
    from collector.dataset.writer import is_folder

    if several(options.gpu):
        return measure_several(options, speak)
    if options.sensor and options.pmd:
        raise click.UsageError("--pmd determines the sensor, which --sensor already does: leave one of them out")
    spec, out, folder = load_campaign(options.campaign), Path(options.out), is_folder(options.out)
    if not folder:
        refuse_inputs((out, log_path(out)))
        if options.record is not None and options.record.resolve() == out.resolve():
            raise CollectorError(f"{options.record}: is named for two outputs; name a file for each")
    opening = {**meter_arguments(options.pmd, options.gpu), "trace": not options.no_trace, "poll_s": 1e-3 * options.poll_ms}
    with (
        told_errors() if options.worker else nullcontext(),
        nullcontext() if options.dry_run else sole_use(options.gpu),
        open_bench(one_board(options.gpu), seed=options.seed, attention=spec.attention, gpu_spec=options.gpu_spec, **opening) as opened,
        perhaps_recorded(opened, None if options.dry_run else options.record) as bench,
    ):
        spec, plan, calibration = _planned(bench, spec, options, speak)
        if options.dry_run:
            speak.say(plan_document(bench, spec, plan), plan_lines(bench, spec, plan))
            return DONE
        outcome = _measured(bench, spec, plan, calibration, options, speak)
    fit = f"fit {options.out} --gpu {bench.gpu_spec.name}" if folder else f"fit {outcome.dataset}"
    speak.say({**asdict(outcome), "dataset": str(outcome.dataset)}, outcome_lines(outcome, bench.simulated, fit))
    refused = sum(outcome.rejected.values())
    if refused or outcome.unusable_rows:
        speak.warn(f"{refused} kernels could not run, {outcome.unusable_rows} rows are unusable")
    unusable = outcome.rows == outcome.unusable_rows
    return DONE_WITH_WARNINGS if unusable or (options.strict and speak.warnings) else DONE


def _planned(
    bench: "Bench", spec: "CampaignSpec", options: CampaignOptions, speak: Speaker
) -> "tuple[CampaignSpec, CampaignPlan, SensorCalibration | None]":
    """The campaign to measure, its plan, and the sensor's calibration if known.

    If the whole plan takes longer than the budget, the plan is the part that fits it.
    """
    from collector.campaigns.plan import chosen_plan, plan_campaign
    from collector.campaigns.selection import hastened

    clocks = asked_clocks(options.freqs, bench.gpu, "--freqs")
    usual_s = math.inf if spec.clock_budget_s is None else len(clocks) * spec.clock_budget_s
    planned_s = duration_s(options.planned_budget, "--planned-budget") if options.planned_budget else options.budget_s(usual_s)
    calibration = sensor_of(options.sensor, bench, speak) if options.sensor else None
    plan = plan_campaign(spec, clocks, options.chosen_families(), options.seed, bench, sensor=calibration)
    speak.warn(*bench.notes)
    if plan.estimated_s > planned_s:
        spec = hastened(spec)
        plan = chosen_plan(spec, plan, bench.gpu_spec, planned_s, options.seed)
    if plan.choice is not None and plan.choice.left_out:
        speak.warn(f"the budget is too small for one kernel of every kind: {len(plan.choice.left_out)} kinds are left out")
    return spec, plan, calibration


def _measured(
    bench: "Bench",
    spec: "CampaignSpec",
    plan: "CampaignPlan",
    calibration: "SensorCalibration | None",
    options: CampaignOptions,
    speak: Speaker,
) -> "CampaignOutcome":
    """Measures a plan into its file, or into its part of a folder."""
    from collector.campaigns.context_guard import SUFFIX as KILLERS_SUFFIX
    from collector.campaigns.context_guard import guarded_bench
    from collector.campaigns.display import plan_lines
    from collector.campaigns.running import Campaign, campaign_key, kept_rows
    from collector.daemon.reporting import reporting
    from collector.dataset.writer import claimed_dataset, is_folder, part_path
    from estimator.vocabulary.whole_file import try_place

    key = campaign_key(bench, spec, plan, options.chosen_families(), options.seed)
    output = Path(part_path(options.out, bench.gpu_spec.name, key) if is_folder(options.out) else options.out)
    try_place(output)
    watched = reporting(bench, spec, plan) if options.worker else _watched(output, speak)
    with claimed_dataset(output, (KILLERS_SUFFIX,)), guarded_bench(bench, output) as guarded, watched as report:
        check_unused(output, options.resume)
        campaign = Campaign(
            guarded,
            spec,
            plan,
            key,
            output,
            kept=kept_rows(output, key) if options.resume else None,
            calibration=calibration,
            budget_s=options.budget_s(),
            report=report,
        )
        speak.note(*([] if options.worker else plan_lines(bench, spec, plan)))
        return campaign.run()


@contextmanager
def _watched(out: Path, speak: Speaker) -> "Iterator[Callable[[Progress], None]]":
    """A function that shows a campaign's progress; an interruption prints how to resume."""
    from collector.campaigns.display import row_line

    with stoppable(out), speak.progress() as tell:
        yield lambda progress: tell("", row_line(progress.row) if progress.row else progress.phase, progress.done, progress.total)


def measure_several(options: CampaignOptions, speak: Speaker) -> int:
    """Plans every board's campaign, then runs them side by side; returns the exit status.  Called within the command `collect`."""
    from collector.boards import board_words, named_boards
    from collector.daemon.worker import measure_side_by_side

    board_texts = board_words(options.gpu)
    meter = "" if options.pmd == SIMULATED_METER else options.pmd
    for name, value in (("--record", options.record), ("--sensor", options.sensor), ("--pmd", meter)):
        if value:
            raise click.UsageError(f"{name} belongs to one board; run one command for each board, or leave it out")
    boards = named_boards(board_texts)
    root = common_root(options.out)
    passed = [word for words in given_words(OWN_OPTIONS).values() for word in words]
    words = {board: [*passed, "--gpu", board.key, "--out", root] for board in boards}
    plans = checked_plans(words, speak)
    if options.dry_run:
        show_plans(plans, speak)
        return DONE
    speak.note(*([] if speak.as_json else "\n".join(plans.values()).splitlines()))
    flags = ["--json"] * speak.as_json + ["--quiet"] * speak.quiet
    with speak.progress() as tell:
        ends = measure_side_by_side(
            {board: [*line, *flags] for board, line in words.items()}, lambda board, text, done, total: tell(board.key, text, done, total)
        )
    return _told_ends(ends, root, speak)


def check_unused(out: Path, resume: bool | None) -> None:
    """Raises CollectorError if an output exists and no option says whether to replace or resume it.

    If it is to be replaced: for anything but a dataset.
    """
    from collector.dataset.reader import check_replaceable, log_path

    if resume is False:
        check_replaceable(out)
    log = log_path(out)
    if resume is None and log.is_file():
        raise CollectorError(f"{out}: an unfinished campaign lies there ({log}); --resume goes on with it, --fresh starts again")
    if resume is None and out.exists():
        raise CollectorError(f"{out} exists; --fresh replaces it, --resume adds what is missing, --out names another file")


def common_root(out: str) -> str:
    """The folder of a dataset in which each board has its own parts.  Raises CollectorError if a file has that name."""
    path = Path(out)
    if not path.is_dir() and (path.exists() or path.suffix == ".parquet"):
        raise CollectorError(f"{out}: names a file; several boards write into a folder, each its own parts: name another with --out")
    return f"{out.rstrip('/')}/"


def checked_plans(words: "dict[BoardName, list[str]]", speak: Speaker) -> "dict[BoardName, str]":
    """The plan of each board as text or JSON, before any measurement.

    Raises CollectorError for the first board without a possible plan, UsageError if the words themselves are wrong.
    """
    from collector.daemon.worker import board_plan

    plans = {}
    for board, line in words.items():
        plan = board_plan([*line, *["--json"] * speak.as_json])
        if plan.status == WRONG_USAGE:
            raise click.UsageError(plan.complaint)
        if plan.status != DONE:
            raise CollectorError(f"{board.key}: {plan.complaint}" if len(words) > 1 else plan.complaint)
        plans[board] = plan.text
    return plans


def show_plans(plans: "dict[BoardName, str]", speak: Speaker) -> None:
    """Prints plans on stdout."""
    speak.say([json.loads(text) for text in plans.values()] if speak.as_json else [], lines_of_plans(plans))


def lines_of_plans(plans: "dict[BoardName, str]") -> list[str]:
    """Plans for people, with a blank line between two of them."""
    return [line for text in plans.values() for line in [*text.splitlines(), ""]][:-1]


def _told_ends(ends: "dict[BoardName, End]", out: str, speak: Speaker) -> int:
    """Reports the end of each board's campaign, and the next command; the worst exit status: interrupted, failed, with warnings, done."""
    good = (DONE, DONE_WITH_WARNINGS)
    told = [(board.key, line) for board, end in ends.items() for line in end.text.splitlines()]
    lines = [f"{word}: {line}" for word, line in told if not line.startswith(NEXT)]
    lines += dict.fromkeys(line for _, line in told if line.startswith(NEXT))
    boards = [{"gpu": board.key, "exit_status": end.status, **(end.result or {"error": end.complaint})} for board, end in ends.items()]
    speak.say({"dataset": out, "boards": boards}, lines)
    for board, end in ends.items():
        if end.status not in good:
            tell(f"collect: {board.key}: {end.complaint}")
    statuses = {end.status if end.status in (*good, INTERRUPTED) else FAILED for end in ends.values()}
    return next(status for status in (INTERRUPTED, FAILED, DONE_WITH_WARNINGS, DONE) if status in statuses)
