"""The daemon's config: what it says is what is done, and everything else is refused by name."""

from pathlib import Path

import pytest

from collector.daemon.settings import DaemonSettings, client_settings, read_settings
from collector.errors import DaemonError
from tests.words import one_line

GPUS = 'gpus = ["sim:a100-pcie-40gb"]\n'


def written(folder, text):
    path = folder / "daemon.toml"
    path.write_text(text)
    return path


def test_the_packaged_example_is_valid(repository):
    settings = read_settings(repository / "packaging" / "daemon.toml")
    assert settings.gpus == ("all",)
    assert settings.address is not None


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "lacks the field 'gpus'"),
        ("gpus = []", "gpus"),
        (GPUS + "hang_s = 0.0", "hang_s = 0 lies outside 1 to 86400 s"),
        (GPUS + "listen = 'localhost:9417'", "no address with a port"),
        (GPUS + "listen = '127.0.0.1:99999'", "no address with a port"),
        (GPUS + "listen = '0.0.0.0:9417'", "allow_other_addresses"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(text, reason, tmp_path):
    with one_line(DaemonError, f"daemon.toml.*{reason}"):
        read_settings(written(tmp_path, text))


def test_other_addresses_are_taken_where_that_is_allowed(tmp_path):
    for listen in ("0.0.0.0:0", "[::1]:80", "127.0.0.9:80"):
        settings = read_settings(written(tmp_path, f'{GPUS}listen = "{listen}"\nallow_other_addresses = true\n'))
        assert settings.address is not None


def test_clients_find_the_state_by_option_then_environment_then_default(tmp_path):
    one = written(tmp_path, GPUS + 'state_folder = "one"\n')
    two = tmp_path / "two.toml"
    two.write_text(GPUS + 'state_folder = "two"\n')
    default = DaemonSettings(gpus=()).folder
    environment = {"WATTPRINT_CONFIG": str(two)}
    assert client_settings(one, environment).folder == tmp_path / "one"
    assert client_settings(None, environment).folder == tmp_path / "two"
    if not Path("/etc/wattprint/daemon.toml").exists():
        assert client_settings(None, {}).folder == default
    assert default.name == "wattprint"
    assert default.is_absolute()
