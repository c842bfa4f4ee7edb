"""`collect` without a command: a campaign."""

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collector.commands.options import (
    asked_clocks,
    duration_s,
    known_sensor,
    meter_arguments,
    one_board,
    perhaps_recorded,
    require_dataset_packages,
)
from collector.commands.output import note, say
from collector.commands.stopping import stoppable
from collector.errors import CollectorError
from estimator.command_line import DONE, DONE_WITH_WARNINGS
from estimator.output_files import refuse_inputs

if TYPE_CHECKING:
    from pyarrow import Table

    from collector.campaigns.files import CampaignSpec
    from collector.campaigns.plan import CampaignPlan
    from collector.campaigns.running import CampaignOutcome, Progress
    from collector.campaigns.selection import Way
    from collector.dataset.partition import PartitionedPlace
    from estimator.gpu import GpuSpec


def measure_campaign(
    gpu: str,
    freqs: str,
    out: str,
    campaign: str,
    families: str | None,
    budget: str,
    select: str | None,
    planned_budget: str,
    gpu_spec: str,
    sensor: str | None,
    pmd: str,
    traces: bool,
    resume: bool | None,
    seed: int,
    record: Path | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    worker: bool,
) -> int:
    """Plan, measure, sum up; the exit status.  Arguments are the options of `collect`."""
    require_dataset_packages()
    from collector.boards import several, sole_use

    if several(gpu):
        from collector.commands.several import measure_several

        return measure_several(gpu, out, sensor, record, pmd, dry_run=dry_run, as_json=as_json, quiet=quiet, verbose=verbose)
    from collector.bench import open_bench
    from collector.campaigns.context_guard import SUFFIX as KILLERS_SUFFIX
    from collector.campaigns.context_guard import guarded_bench
    from collector.campaigns.files import load_campaign
    from collector.campaigns.plan import check_budget, plan_campaign
    from collector.campaigns.running import campaign_key, run_campaign
    from collector.daemon.reporting import reporting, told_errors
    from collector.dataset import claimed_dataset
    from collector.dataset.log import log_path
    from collector.dataset.partition import partitioned_place
    from collector.dataset.traces import traces_of, traces_path
    from collector.display import outcome_document, outcome_lines, plan_document, plan_lines
    from estimator.whole_file import try_place

    budget_s = duration_s(budget, "--budget") if budget else math.inf
    planned_s = duration_s(planned_budget, "--planned-budget") if planned_budget else budget_s
    if select not in (None, "all") and not math.isfinite(planned_s):
        raise click.UsageError(f"--select {select} chooses what fits a budget; give one: --budget 30m")
    spec = load_campaign(campaign)
    chosen = _families(families)
    place = partitioned_place(out)
    if place is None:
        refuse_inputs((Path(out), log_path(Path(out)), traces_path(Path(out))))
        if record is not None and record.resolve() == Path(out).resolve():
            raise CollectorError(f"{record}: is named for two outputs; name a file for each")
    with (
        told_errors() if worker else nullcontext(),
        nullcontext() if dry_run else sole_use(gpu),
        open_bench(one_board(gpu), seed=seed, attention=spec.attention, gpu_spec=gpu_spec, **meter_arguments(pmd, gpu)) as opened,
        perhaps_recorded(opened, record) as bench,
    ):
        if not quiet:
            for line in bench.notes:
                note(f"warning: {line}")
        clocks = asked_clocks(freqs, bench.gpu, "--freqs")
        identity = bench.gpu.identity()
        calibration = known_sensor(sensor, bench, quiet)
        plan = plan_campaign(
            spec, clocks, chosen, seed, identity.uuid, bench.runner, bench.gpu_spec,
            meter=len(bench.sensors) > 1, sensor_known=calibration is not None,
        )  # fmt: skip
        if not quiet:
            for line in plan.remarks:
                note(f"warning: {line}")
        if not resume:
            check_budget(spec, plan, budget_s, calibration)
        spec, plan = _chosen(spec, plan, select, planned_s, seed, bench.gpu_spec, quiet=quiet, dry_run=dry_run)
        if dry_run:
            say(plan_document(bench, spec, plan) if as_json else plan_lines(bench, spec, plan))
            return DONE
        key = campaign_key(bench, spec, plan, chosen, seed)
        output = Path(out) if place is None else place.running_output(key)
        elsewhere = None if place is None else _published(place, output, key, resume, quiet)
        try_place(output)
        watched = reporting(bench, spec, plan) if worker else _watched(output, len(plan.points), quiet, verbose)
        with claimed_dataset(output, (KILLERS_SUFFIX,)) as claim, guarded_bench(bench, output) as guarded, watched as report:
            kept = _kept(output, key, resume)
            outcome = run_campaign(
                guarded,
                spec,
                plan,
                key,
                output,
                kept=kept,
                elsewhere=elsewhere,
                calibration=calibration,
                budget_s=budget_s,
                traces=traces or (kept is not None and traces_of(output, kept.table) is not None),
                report=report,
                warn=lambda text: None if quiet else note(f"warning: {text}"),
                claim=claim,
            )
        simulated = bench.simulated
    part, root = ("", "") if place is None else (place.publish(output) if outcome.rows else "", out)
    say(outcome_document(outcome, part) if as_json else outcome_lines(outcome, simulated, part, root))
    return _status(outcome, quiet)


def _chosen(
    spec: "CampaignSpec",
    plan: "CampaignPlan",
    select: str | None,
    budget_s: float,
    seed: int,
    gpu: "GpuSpec | None",
    *,
    quiet: bool,
    dry_run: bool,
) -> "tuple[CampaignSpec, CampaignPlan]":
    """The campaign as it is measured and the part of its plan that a budget is spent on, and a word about it.

    It is the whole plan where that fits or nothing can be chosen.  Without --select a budget too small for one kernel of
    every kind chooses none: it is the start of a campaign that is resumed.
    """
    from collector.campaigns.plan import chosen_plan, hastened, least_budget_s
    from collector.display import choice_text, duration_text

    if select == "all" or plan.estimated_s <= budget_s:
        return spec, plan
    way: Way = "random" if select == "random" else "active"
    hasty = hastened(spec, way)
    least_s = least_budget_s(hasty, plan)
    small = (
        f"the budget is too small for one kernel of every kind, which takes about {duration_text(least_s)}" if budget_s < least_s else ""
    )
    if select is None and (small or gpu is None):
        if not quiet:
            why = small or "no equations are known for this board, so nothing tells which kernels add most"
            note(f"note: {why}; the plan is measured from its start, in random order, until the budget ends")
        return spec, plan
    chosen = chosen_plan(hasty, plan, way, budget_s, seed, gpu)
    if not quiet:
        if small:
            note(f"warning: {small}")
        if chosen.choice is not None and not dry_run:
            note(f"note: measures {choice_text(chosen.choice)} (--select all: the plan from its start)")
    return hasty, chosen


def _published(place: "PartitionedPlace", running: Path, key: dict[str, Any], resume: bool | None, quiet: bool) -> "Table | None":
    """Rows of this campaign that lie in parts already, where it goes on; a part that was left unpublished is published first."""
    from collector.dataset.log import log_path

    place.check(running)
    if running.is_file() and not log_path(running).is_file():
        part = place.publish(running)
        if not quiet:
            note(f"published what an earlier run had finished: {part}")
    return place.measured(key) if resume else None


def _families(text: str | None) -> tuple[str, ...]:
    """Names of families; none for all.  Raises BadParameter for a list without a name."""
    if text is None:
        return ()
    chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not chosen:
        raise click.BadParameter(f"{text!r} names no family; leave the option out for all", param_hint="--families")
    return chosen


def _kept(out: Path, key: dict[str, Any], resume: bool | None) -> Any:
    """Rows to go on from.  Raises CollectorError where something is at `out` and neither flag says what to do with it."""
    from collector.campaigns.kept import kept_rows
    from collector.daemon.outputs import check_unused

    check_unused(out, resume)
    return kept_rows(out, key) if resume else None


@contextmanager
def _watched(out: Path, total: int, quiet: bool, verbose: bool) -> Iterator[Any]:
    """Progress for a person, and the way on where it is stopped."""
    with stoppable(out), _progress(total, quiet, verbose) as report:
        yield report


@contextmanager
def _progress(total: int, quiet: bool, verbose: bool) -> Iterator[Any]:
    """A function that shows a campaign's progress: a bar with ETA on a terminal, lines with -v, nothing else."""
    from collector.display import row_line

    if quiet or not (verbose or sys.stderr.isatty()):
        yield lambda _progress: None
        return
    if verbose:

        def tell(progress: "Progress") -> None:
            text = row_line(progress.row) if progress.row else progress.phase
            note(f"{progress.done}/{progress.total} {text}")

        yield tell
        return
    with ExitStack() as stack:
        bars: list[Any] = []  # opened with the first row to measure: its ETA knows nothing of what went before
        begun: list[int] = []

        def advance(progress: "Progress") -> None:
            if not bars and progress.phase != "measuring":
                note(f"{progress.phase} …")
            elif not bars:
                length = max(1, total - progress.done)
                bars.append(stack.enter_context(click.progressbar(length=length, file=sys.stderr, show_pos=True, label="measuring")))
                begun.append(progress.done)
            elif progress.row is not None:
                bars[0].label = f"{progress.row['family']:<11}"
                bars[0].update(progress.done - begun[0] - bars[0].pos)

        yield advance


def _status(outcome: "CampaignOutcome", quiet: bool) -> int:
    """Exit status of a campaign, and a warning where data were lost."""
    refused = sum(outcome.rejected.values())
    if not refused and not outcome.unusable:
        return DONE
    if not quiet:
        note(f"warning: {refused} kernels could not run, {outcome.unusable} rows are unusable")
    return DONE_WITH_WARNINGS
