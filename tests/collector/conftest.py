"""A tiny campaign and a sensor calibration that several test files share."""

from pathlib import Path

import pytest

from collector.bench import open_bench
from collector.campaigns.files import CampaignSpec, load_campaign
from collector.sampling import Sampler
from collector.sensor.calibration import SensorCalibration
from collector.sensor.characterisation import characterise_sensor
from microbench.compile import Toolchain, find_toolchain
from microbench.errors import CompileError

BOARD = "sim:a100-pcie-40gb"

TINY_CAMPAIGN = """
description = "a dozen kernels"
warmup_s = 2.0
retries = 0
idle_settle_s = 1.0
idle_window_s = 1.0
kernels_per_block = 4
anchor_every = 6

[measurement]
updates = 8
window_s = 0.8
settle_s = 0.3
idle_s = 1.5

[[anchors]]
family = "elementwise"
operator = "add"
precision = "fp16"
elements = 33554432
reads = 67108864

[[kernels]]
family = "gemm"
operator = "linear"
precision = "bf16|fp16"
count = 6
[kernels.shape]
batch = 1
m = { low = 16, high = 8192, multiple = 8 }
n = { low = 64, high = 8192, multiple = 64 }
k = [512, 1024, 4096]

[[kernels]]
family = "softmax"
operator = "softmax"
precision = "fp32"
count = 4
[kernels.shape]
rows = { low = 64, high = 65536 }
dim = { low = 64, high = 4096 }
"""


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("campaign") / "tiny.toml"
    path.write_text(TINY_CAMPAIGN)
    return path


@pytest.fixture(scope="session")
def tiny(tiny_file: Path) -> CampaignSpec:
    return load_campaign(str(tiny_file))


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """The CUDA compiler that generated kernels need; without one they are not tested."""
    try:
        return find_toolchain()
    except CompileError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def calibration() -> SensorCalibration:
    """The simulated A100's sensor as it was found, with an external meter's gain and offset."""
    with open_bench(BOARD, seed=11, meter=True) as bench:
        bench.gpu.lock_clock_mhz(900)
        return characterise_sensor(bench, Sampler(bench.gpu, bench.sensors)).calibration
