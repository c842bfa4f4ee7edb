"""Making a job of what a user asks for: the campaign's file is copied, so that later changes to it change no queued job."""

import getpass
import os
from pathlib import Path
from typing import Final

from collector.campaigns.files import campaign_names, load_campaign
from collector.daemon.store import prepare_folder
from collector.devices.errors import CampaignError, DaemonError
from estimator.vocabulary.regular_files import read_regular
from estimator.vocabulary.whole_file import write_whole

CAMPAIGN_FOLDER: Final = "campaigns"
LARGEST_CAMPAIGN: Final = 1 << 20
"""Bytes of a campaign's file at the most, as `collect` itself has it."""


def frozen_campaign(folder: Path, name_or_path: str) -> tuple[str, str]:
    """What a job names as its campaign, and the campaign's title: a shipped one by its name, a file by a copy of it.

    The copy lies in the state folder, under the digest of its content.  Raises CampaignError where it cannot be used, DaemonError where
    it cannot be copied and where the folder is another user's, by root, too.
    """
    spec = load_campaign(name_or_path)
    prepare_folder(folder, own=True)  # what root puts there another user's daemon cannot read
    if name_or_path in campaign_names():
        return name_or_path, spec.name
    source = Path(name_or_path)
    try:
        content = read_regular(source, LARGEST_CAMPAIGN)
        place = folder / CAMPAIGN_FOLDER / spec.digest
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy = place / f"{source.stem}.toml"  # a campaign without a name of its own is called by its file
        write_whole(copy, content)
    except OSError as error:
        raise DaemonError(f"{source}: cannot be copied to {folder} ({error}); see that the disk has room") from error
    if load_campaign(str(copy)).digest != spec.digest:
        raise CampaignError(f"{source}: has changed while it was read; submit it again")
    return str(copy), spec.name


def user_name() -> str:
    """Who submits: the user's name, or number where there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
