"""On a borrowed board nothing is changed: whatever runs with `--freqs current`, no setter of the driver is called."""

import re
import sys
import time
import tomllib
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pynvml
import pytest

from collector.bench import open_instruments
from collector.campaigns.files import campaign_from_document
from collector.campaigns.plan import plan_campaign
from collector.campaigns.running import Campaign, campaign_key
from collector.clocks import clocks_from_text
from collector.commands.doctor import examine
from collector.dataset.reader import read_kernel_dataset
from collector.devices.protocols import Bench, LaunchRecord, PreparedKernel
from collector.sensing.calibration import SensorCalibration
from estimator import load_gpu

SETTER = re.compile(r"nvml\w*(Set|Reset|Clear|Remove|Modify|Create|Destroy|Freeze|Register)[A-Z]")
LAUNCH_S = 0.002
CAMPAIGN = """
name = "short"
warmup_s = 0.05
idle_settle_s = 0.05
idle_window_s = 0.2
measurement = {updates = 4, window_s = 0.1, settle_s = 0.05, gap_s = 0.0, idle_s = 0.1, ranging_s = 0.005, timed_s = 0.02}
[[kernels]]
family = "softmax"
operator = "softmax"
precision = "fp16"
count = 2
shape = {rows = [64, 128], dim = 64}
"""


@pytest.fixture(autouse=True)
def read_only_driver(driver, monkeypatch):
    """The binding, without its setters."""

    def refuse(name):
        raise AssertionError(f"the setter {name} was called")

    binding = types.ModuleType("pynvml")
    for name, value in vars(pynvml).items():
        setattr(binding, name, (lambda *_, name=name: refuse(name)) if SETTER.match(name) else value)
    monkeypatch.setitem(sys.modules, "pynvml", binding)


class SleepingRunner:
    """Runs a kernel by waiting as long as it takes."""

    def supports(self, operator, transpose=""):
        return True

    def prepare(self, operator, l2_state="warm", transpose=""):
        return PreparedKernel(operator=operator, l2_state=l2_state, library="none", working_set_bytes=1, untraced="a stand-in")

    def prepare_generated(self, load):
        raise NotImplementedError

    def run(self, prepared, launches):
        start_ns = time.monotonic_ns()
        time.sleep(LAUNCH_S * launches)
        end_ns = time.monotonic_ns()
        return LaunchRecord(
            start_ns=start_ns, end_ns=end_ns, launches=launches, segment_s=np.full(10, (end_ns - start_ns) * 1e-9 / launches)
        )


def test_a_campaign_and_doctor_at_the_current_clock_call_no_setter(boards, tmp_path):
    boards.set(sm_mhz=1755)
    with open_instruments("0") as instruments:
        devices = {name: getattr(instruments, name) for name in ("word", "gpu", "sensors", "clock", "simulated", "notes")}
        bench = Bench(**devices, runner=SleepingRunner(), gpu_spec=load_gpu("h200-sxm"))
        spec = campaign_from_document(tomllib.loads(CAMPAIGN), "test")
        sensor = SensorCalibration(gpu_uuid=bench.gpu.identity().uuid, driver="", sensor="nvml", field="instant")
        known = replace(sensor, averaging="none", update_period_s=0.02, settle_s=0.05)
        plan = plan_campaign(spec, clocks_from_text("current", bench.gpu), (), 0, bench, sensor=known)
        out = tmp_path / "d.parquet"
        outcome = Campaign(bench, spec, plan, campaign_key(bench, spec, plan, (), 0), out, calibration=known).run()
    table = read_kernel_dataset(out).table
    assert table.column("sm_clock_mhz").null_count == outcome.rows == 2
    assert table.column("sm_clock_measured_mhz").null_count == 0
    findings = [finding for finding in examine("0") if finding.check.startswith("GPU 0")]
    assert findings
    assert not any("nvidia-smi" in finding.remedy for finding in findings)
    assert (boards.get("lock_calls"), boards.get("reset_calls")) == (0, 0)


def test_only_the_two_calls_of_the_clock_change_a_board(repository):
    """In the packages and the card's scripts; a remedy that doctor prints counts too."""
    setters = {"nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"}
    forbidden = re.compile(
        r"nvidia-smi[^\n\"']* -(pm|pl|lgc|lmc|ac|rac|rgc|c|e|mig|r)\b|nvidia-smi[^\n\"']*(lock-|power-limit|persistence)"
    )
    for file in (file for folder in ("collector", "microbench", "scripts") for file in Path(repository, folder).rglob("*.py")):
        text = file.read_text()
        assert {found.group() for found in re.finditer(SETTER.pattern + r"\w*", text)} <= setters, file
        assert not forbidden.search(text), file
