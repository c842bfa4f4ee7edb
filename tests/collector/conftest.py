"""A tiny campaign and a sensor calibration that several test files share."""

import json

import pytest

from collector.bench import open_bench
from collector.campaigns.files import load_campaign
from collector.sampling import Sampler
from collector.sensing.live import characterise_sensor
from tests.collector.campaigns import ANCHORED_HEAD, softmax_of_many_sizes

BOARD = "sim:a100-pcie-40gb"

TINY_CAMPAIGN = f"""{ANCHORED_HEAD}
[[kernels]]
family = "gemm"
operator = "linear"
precision = "bf16|fp16"
count = 6
[kernels.shape]
batch = 1
m = {{ low = 16, high = 8192, multiple = 8 }}
n = {{ low = 64, high = 8192, multiple = 64 }}
k = [512, 1024, 4096]
{softmax_of_many_sizes(4)}"""


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("campaign") / "tiny.toml"
    path.write_text(TINY_CAMPAIGN)
    return path


@pytest.fixture(scope="session")
def tiny(tiny_file):
    return load_campaign(str(tiny_file))


@pytest.fixture(scope="session")
def calibration():
    """The simulated A100's sensor as it was found, with an external meter's gain and offset."""
    with open_bench(BOARD, seed=11, meter=True) as bench:
        bench.gpu.lock_clock_mhz(900)
        return characterise_sensor(bench, Sampler(bench.gpu, bench.sensors))


@pytest.fixture(scope="session")
def sensor_file(calibration, tmp_path_factory):
    """The file of that sensor."""
    path = tmp_path_factory.mktemp("sensor") / "sensor.json"
    path.write_text(json.dumps(calibration.document()))
    return path
