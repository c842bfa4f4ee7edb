"""`collect submit`."""

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from collector.commands.options import (
    CONTEXT,
    SIMULATED_METER,
    duration_s,
    output_options,
    require_dataset_packages,
    resume_option,
    sensor_option,
)
from collector.commands.output import note, say
from collector.errors import CollectorError
from estimator.command_line import DONE
from estimator.output_files import OutputPlace, refuse_inputs

if TYPE_CHECKING:
    from collector.boards import BoardName
    from collector.daemon.jobs import Overview
    from collector.daemon.store import Store

KEPT_FROM_JOBS: Final = (
    "gpu",
    "out",
    "campaign",
    "budget",
    "planned_budget",
    "resume",
    "fresh",
    "dry_run",
    "force",
    "record",
    "worker",
    "as_json",
    "quiet",
    "verbose",
)
"""Options of `collect` that a job has from `submit` itself, or cannot have."""

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The daemon's config; else $WATTPRINT_CONFIG, /etc/wattprint/daemon.toml.",
)


@click.command("submit", context_settings=CONTEXT)
@click.argument("campaign", metavar="CAMPAIGN")
@click.option("--gpu", default="0", show_default=True, metavar="WORD", help="Board, or several: 0,1; all: every board of the daemon.")
@click.option("--freqs", metavar="MHZ", help="SM clocks: 510,900,1410, LO:HI:STEP, all or current; else the config's.")
@click.option(
    "--out",
    default="dataset.parquet",
    show_default=True,
    metavar="FILE|FOLDER/|URL",
    type=OutputPlace(),
    help="Dataset to write; in a folder or at a URL, parts of one.",
)
@click.option("--families", metavar="LIST", help="Only these kernel families.")
@click.option("--budget", metavar="TIME", help="Begin no kernel after this much of the board's time, all attempts together: 30m, 2h.")
@sensor_option()
@click.option("--pmd", metavar="PORT|sim", help="External power meter.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Chooses kernels and their order.")
@resume_option
@click.option("--priority", type=click.IntRange(-1000, 1000), default=0, show_default=True, help="The higher runs first on its board.")
@click.option("--dry-run", is_flag=True, help="Check and print the plan; queue nothing.")
@config_option
@output_options
@click.argument("more", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS]")
def submit_command(
    campaign: str,
    gpu: str,
    freqs: str | None,
    out: str,
    families: str | None,
    budget: str | None,
    sensor: str | None,
    pmd: str | None,
    seed: int | None,
    resume: bool | None,
    priority: int,
    dry_run: bool,
    config: Path | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    more: tuple[str, ...],
) -> int:
    """Queue a campaign for the daemon, after the checks that `collect` makes; print its plan.

    Further options of `collect` follow after two dashes.  A campaign's file is copied: later changes to it change nothing.
    Without a daemon the job waits until one runs.
    """
    require_dataset_packages()
    from collector.boards import named_boards
    from collector.campaigns.files import load_campaign
    from collector.commands.several import checked_plans, show_plans
    from collector.daemon.settings import client_settings
    from collector.daemon.store import open_store
    from collector.daemon.submission import frozen_campaign
    from collector.devices.board_claim import board_is_claimed
    from collector.sensing.catalogue import is_file_name

    settings = client_settings(config, os.environ)
    folder, defaults = settings.folder, settings.defaults
    budget_text = budget if budget is not None else defaults.budget
    budget_s = duration_s(budget_text, "--budget") if budget_text else math.inf
    boards = named_boards(_board_words(gpu, folder, settings.gpus))
    _check_board_options(boards, pmd, sensor)
    options = {
        "--freqs": freqs if freqs is not None else defaults.freqs,
        "--families": families if families is not None else defaults.families or None,
        "--sensor": (str(Path(sensor).absolute()) if sensor and is_file_name(sensor) else sensor) or defaults.sensor or None,
        "--pmd": (pmd if pmd is not None else defaults.pmd) or None,
        "--seed": str(seed if seed is not None else defaults.seed),
    }
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    arguments = (*_checked_more(more), *given)
    load_campaign(campaign)  # a file that cannot be used is known before anything else is done
    refuse_inputs([Path(out)], [defaults.sensor])
    place = _place(out, boards, resume)
    spent = ["--budget", budget_text] if budget_text else []
    words = {board: [*arguments, *spent, "--campaign", campaign, "--gpu", board.word, "--out", place] for board in boards}
    # A board that is being measured is not touched for a plan: that would be seen in its power.
    free = {board: line for board, line in words.items() if board.simulated or not board_is_claimed(board.key)}
    plans = checked_plans(free, as_json=as_json)
    if dry_run:
        show_plans(plans, as_json=as_json)
        return DONE
    source, title = frozen_campaign(folder, campaign)
    _make_folder(place)
    with open_store(folder) as store:
        jobs = {board: _queued(store, board, place, source, title, arguments, budget_s, resume is False, priority) for board in boards}
        overview = store.overview(limit=0)
    if as_json:
        say([{"job": number, "gpu": board.key, "out": place, "plan": _document(plans.get(board))} for board, number in jobs.items()])
    else:
        show_plans(plans, as_json=False)
        say([f"job {number} queued: {title} on {board.word} into {place}" for board, number in jobs.items()])
    if not quiet:
        _notice(overview, boards, [board for board in boards if board not in free])
    return DONE


def _board_words(gpu: str, folder: Path, served: tuple[str, ...]) -> tuple[str, ...]:
    """The words for boards, `all` as the boards that the daemon serves: by its config, else by what the last one wrote down.

    Where neither is there it stays the word for every real board.
    """
    from collector.boards import ALL, board_words
    from collector.daemon.store import has_database, open_store

    words = board_words(gpu)
    if all(word.lower() != ALL for word in words):
        return words
    if not served and has_database(folder):
        with open_store(folder) as store:
            served = tuple(board.gpu_word for board in store.overview(limit=0).boards)
    return tuple(item for word in words for item in (served or (word,) if word.lower() == ALL else (word,)))


def _document(plan: str | None) -> Any:
    """A plan that was printed as JSON; None where none was made."""
    return None if plan is None else json.loads(plan)


def _queued(
    store: "Store",
    board: "BoardName",
    out: str,
    campaign: str,
    title: str,
    arguments: tuple[str, ...],
    budget_s: float,
    fresh: bool,
    priority: int,
) -> int:
    from collector.daemon.jobs import Job
    from collector.daemon.submission import user_name

    return store.submit(
        Job(
            board=board.key,
            gpu_word=board.word,
            campaign=campaign,
            title=title,
            arguments=arguments,
            out=out,
            budget_s=budget_s if math.isfinite(budget_s) else None,
            fresh=fresh,
            priority=priority,
            submitted_by=user_name(),
        )
    )


def _check_board_options(boards: "tuple[BoardName, ...]", pmd: str | None, sensor: str | None) -> None:
    """Raises CollectorError where one sensor's or one meter's figures would be taken for several boards."""
    if len(boards) > 1 and (sensor or (pmd and pmd != SIMULATED_METER)):
        raise CollectorError("--sensor and --pmd belong to one board; submit a job for each board")


def _checked_more(more: tuple[str, ...]) -> list[str]:
    """Options of `collect` beyond those of `submit`.  Raises UsageError for what is none, or none that a job can have."""
    from collector.commands.collect import collect_command

    context = click.Context(collect_command, info_name="collect", resilient_parsing=True)
    try:
        given, left, _ = collect_command.make_parser(context).parse_args(list(more))
    except click.UsageError as error:
        raise click.UsageError(f"after --: {error.format_message()}") from error
    unfit = [name for name in given if name in KEPT_FROM_JOBS]
    if left or unfit:
        raise click.UsageError(f"after --: {(left or [f'--{unfit[0]}'.replace('_', '-')])[0]!r} is no option that a job can have")
    return list(more)


def _place(out: str, boards: "tuple[BoardName, ...]", resume: bool | None) -> str:
    """The output as a job has it, free or spoken for.  Raises CollectorError."""
    from collector.commands.several import common_root
    from collector.daemon.outputs import check_unused
    from collector.dataset.partition import partitioned_place
    from estimator.whole_file import try_place

    root = common_root(out) if len(boards) > 1 else out
    if partitioned_place(root) is None:
        check_unused(Path(out), resume)
        try_place(Path(out))
        return str(Path(out).absolute())
    if resume is False:
        raise CollectorError(f"{out}: in a folder or URL nothing is replaced, what is missing is added; leave --fresh out")
    return root if "://" in root else f"{Path(root).absolute()}/"


def _make_folder(place: str) -> None:
    """Make a dataset's folder where the output is one.  Raises CollectorError."""
    if not place.endswith("/") or "://" in place:
        return
    try:
        Path(place).mkdir(exist_ok=True)
    except OSError as error:
        raise CollectorError(f"{place}: no folder can be made there ({error.strerror}); name another place with --out") from error


def _notice(overview: "Overview", boards: "tuple[BoardName, ...]", busy: "list[BoardName]") -> None:
    """What keeps the jobs from being planned and run."""
    for board in busy:
        note(f"{board.word}: is being measured on; its plan is made when its turn comes")
    if not overview.running:
        note("no daemon runs: the job waits until `collect daemon --config FILE` is started")
        return
    served = {board.board for board in overview.boards}
    for board in boards:
        if board.key not in served:
            note(f"warning: the daemon does not serve {board.word}: add it to `gpus` in its config and start it again")
