"""A helper's settings are its owner's alone, and nothing in them is guessed."""

import os
import re

import pytest

from collector.errors import PrivilegedError
from collector.privileged.settings import read_settings
from tests.collector.privileged.conftest import UUID
from tests.words import one_line


def refused(place, words):
    with one_line(PrivilegedError, re.escape(words)):
        read_settings(place.config)


@pytest.mark.parametrize(
    "before, after, words",
    [
        ("lowest_mhz = 510", "lowest_mhz = 1411", "above highest_mhz"),
        ("lowest_mhz = 510", "lowest_mhz = 510.5", "whole number"),
        ("highest_mhz = 1410", "highest_mhz = 20000", "outside 1 to 10000 MHz"),
        ("lowest_mhz = 510", "lowest_mhz = 510\npower_w = 300", "power_w"),
        pytest.param('uuid = "' + UUID, 'uuid = "/dev/' + UUID, "boards[0].uuid", id="a path for a board"),
        ("group = ", 'group = "no such group" # ', "no group of this machine"),
        ("group = ", "# ", "lacks the field 'group'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_one_line(before, after, words, place):
    text = place.config.read_text()
    assert before in text
    place.config.write_text(text.replace(before, after, 1))
    refused(place, words)


def test_a_config_that_others_may_change_is_refused(place):
    place.config.chmod(0o646)
    refused(place, "others may change it")
    place.config.chmod(0o664)
    refused(place, "others may change it")
    place.config.chmod(0o644)
    place.folder.chmod(0o777)
    refused(place, "others may change folder")


def test_a_config_behind_a_link_is_refused(place):
    real = place.folder / "real.toml"
    place.config.rename(real)
    place.config.symlink_to(real)
    assert "symbolic link" in place.refused()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_config_is_refused(place):
    os.chown(place.config, 65534, -1)
    refused(place, "belongs to user 65534")


def test_without_a_socket_of_the_service_manager_it_does_not_start(place):
    assert "systemctl start" in place.refused()
