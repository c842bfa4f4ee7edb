"""`collect submit`."""

import json
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from collector.commands.campaign import check_unused, checked_plans, common_root, lines_of_plans, show_plans
from collector.commands.options import SIMULATED_METER, campaign_options, config_option, duration_s, given_words, output_options
from collector.commands.output import Speaker
from collector.errors import DaemonError
from estimator.options.command_line import refuse_inputs
from estimator.vocabulary.reader import MAX_FILE_BYTES
from estimator.vocabulary.regular_files import read_regular
from estimator.vocabulary.whole_file import try_place, write_whole

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from collector.boards import BoardName
    from collector.daemon.jobs import Overview

OWN_OPTIONS: Final = frozenset({"gpu", "out", "budget", "resume", "fresh", "priority", "dry_run", "config", "as_json", "quiet", "verbose"})
"""Options that are fields of a job rather than words of `collect`."""


@click.command("submit")
@click.argument("campaign", metavar="CAMPAIGN")
@campaign_options
@click.option("--priority", type=click.IntRange(-1000, 1000), default=0, show_default=True, help="The higher runs first on its board.")
@config_option
@output_options
def submit_command(campaign: str, priority: int, config: Path | None, speak: Speaker, **options: Any) -> None:
    """Queue a campaign for the daemon, after the checks that `collect` makes; print its plan.

    A campaign's file is copied: later changes to it have no effect.  Without a daemon the job waits until one runs.
    """
    from collector.boards import named_boards
    from collector.campaigns.files import load_campaign
    from collector.daemon.jobs import Job
    from collector.daemon.settings import client_settings
    from collector.daemon.store import open_store
    from collector.devices.board_claim import board_is_claimed

    settings = client_settings(config, os.environ)
    folder, budget = settings.folder, options["budget"]
    boards = named_boards(_board_words(options["gpu"], settings.gpus))
    arguments = tuple(_words(options, len(boards)))
    load_campaign(campaign)  # checks the file before anything else is done
    refuse_inputs([Path(options["out"])])
    place = _place(options["out"], len(boards), options["resume"])
    spent = ["--budget", budget] if budget else []
    words = {board: [*arguments, *spent, "--campaign", campaign, "--gpu", board.key, "--out", place] for board in boards}
    # A board in use is not opened for a plan: this would be visible in its power.
    free = {board: line for board, line in words.items() if board.simulated or not board_is_claimed(board.key)}
    plans = checked_plans(free, speak)
    if options["dry_run"]:
        show_plans(plans, speak)
        return
    source, title = frozen_campaign(folder, campaign)
    with open_store(folder) as store:
        job = Job(
            board="",
            campaign=source,
            title=title,
            arguments=arguments,
            out=place,
            budget_s=duration_s(budget, "--budget") if budget else None,
            fresh=options["resume"] is False,
            priority=priority,
        )
        jobs = {board: store.submit(replace(job, board=board.key)) for board in boards}
        overview = store.overview(limit=0)
    queued = [f"job {number} queued: {title} on {board.key} into {place}" for board, number in jobs.items()]
    documents = [
        {"job": number, "gpu": board.key, "out": place, "plan": json.loads(plans[board]) if speak.as_json and board in plans else None}
        for board, number in jobs.items()
    ]
    speak.say(documents, lines_of_plans(plans) + queued)
    _notice(overview, boards, free, speak)


def frozen_campaign(folder: Path, name_or_path: str) -> tuple[str, str]:
    """Name and title of a job's campaign: a shipped one by its name, a file by a copy of it.

    The copy lies in the state folder, under the digest of its bytes.  Raises CampaignError if it cannot be used, DaemonError if
    it cannot be copied and if the folder is another user's, also for root.
    """
    from collector.campaigns.files import campaign_names, load_campaign
    from collector.daemon.store import prepare_folder

    prepare_folder(folder, own=True)  # another user's daemon cannot read root's files there
    if name_or_path in campaign_names():
        return name_or_path, load_campaign(name_or_path).name
    source = Path(name_or_path)
    try:
        content = read_regular(source, MAX_FILE_BYTES)
        place = folder / "campaigns" / sha256(content).hexdigest()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy = place / f"{source.stem}.toml"  # a campaign without a name of its own takes its file's name
        write_whole(copy, content)
    except OSError as error:
        raise DaemonError(f"{source}: cannot be copied to {folder} ({error}); see that the disk has room") from error
    return str(copy), load_campaign(str(copy)).name


def _notice(overview: "Overview", boards: "Sequence[BoardName]", free: "Collection[BoardName]", speak: Speaker) -> None:
    """Reports the reasons why the jobs cannot be planned and run."""
    served = {board.board for board in overview.boards}
    for board in boards:
        if board not in free:
            speak.note(f"{board.key}: is being measured on; its plan is made when its turn comes")
        if overview.running and board.key not in served:
            speak.warn(f"the daemon does not serve {board.key}: add it to `gpus` in its config and start it again")
    if not overview.running:
        speak.note("no daemon runs: the job waits until `collect daemon --config FILE` is started")


def _words(options: dict[str, Any], boards: int) -> list[str]:
    """The words of `collect` for a job.  Raises UsageError."""
    from collector.sensing.catalogue import is_file_name

    sensor, pmd = options["sensor"], options["pmd"]
    if boards > 1 and (sensor or (pmd and pmd != SIMULATED_METER)):
        raise click.UsageError("--sensor and --pmd belong to one board; submit a job for each board")
    given = given_words(OWN_OPTIONS)
    if sensor and is_file_name(sensor):
        given["sensor"] = ["--sensor", str(Path(sensor).absolute())]
    return [word for words in given.values() for word in words]


def _board_words(gpu: str, served: tuple[str, ...]) -> tuple[str, ...]:
    """The words for boards, `all` as the boards of the daemon's config; without one it stays the word for every real board."""
    from collector.boards import ALL, board_words

    return tuple(item for word in board_words(gpu) for item in (served or (word,) if word.lower() == ALL else (word,)))


def _place(out: str, boards: int, resume: bool | None) -> str:
    """The output path for a job, if free or explicitly resumed or replaced.  Raises CollectorError."""
    from collector.dataset.writer import is_folder

    path = Path(out)
    root = common_root(out) if boards > 1 else out
    if is_folder(root):
        return f"{Path(root).absolute()}/"
    check_unused(path, resume)
    try_place(path)
    return str(path.absolute())
