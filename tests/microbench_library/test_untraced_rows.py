"""A campaign without CUPTI: rows say what was measured, and that nothing told which kernel ran."""

from dataclasses import replace

from collector.bench import open_bench
from collector.campaigns.files import MeasurementSettings
from collector.campaigns.measurement import Point, measure_kernel
from collector.dataset import rows_to_table
from collector.devices.protocols import PreparedKernel
from collector.sampling import Sampler
from collector.sensing.calibration import SensorCalibration
from collector.sensing.live import characterise_sensor
from estimator.vocabulary.workload import make_operator

PRODUCT = make_operator("gemm", "linear", "fp16", batch=1, m=512, n=512, k=512)
SIZES = ("registers_per_thread", "shared_bytes_per_block", "blocks_per_sm", "tile_m", "tile_n", "tile_k", "stages", "split_k")


class WithoutTracer:
    """A runner whose kernels nothing has traced."""

    def __init__(self, runner):
        self._runner = runner
        self._known: dict[PreparedKernel, PreparedKernel] = {}

    def prepare(self, *request):
        known = self._runner.prepare(*request)
        untraced = PreparedKernel(
            operator=PRODUCT, l2_state="warm", library="cublas", working_set_bytes=1, untraced="CUPTI is not installed"
        )
        self._known[untraced] = known
        return untraced

    def run(self, prepared, launches):
        return self._runner.run(self._known[prepared], launches)


def test_a_row_of_an_untraced_kernel_has_nulls_and_the_reason():
    with open_bench("sim:a100-pcie-40gb", seed=3) as bench:
        bench.gpu.lock_clock_mhz(900)
        sampler = Sampler(bench.gpu, bench.sensors)
        calibration: SensorCalibration = characterise_sensor(bench, sampler)
        point = Point(row_id="0" * 16, operator=PRODUCT, l2_state="warm", sm_clock_mhz=900.0, trial=0, seed=3)
        settings = MeasurementSettings(updates=8, window_s=0.5, settle_s=0.3)
        row = measure_kernel(replace(bench, runner=WithoutTracer(bench.runner)), sampler, point, settings, calibration)
        traced = measure_kernel(bench, sampler, point, settings, calibration)
    unknown = ("kernel_name", *SIZES, *(f"{edge}_{axis}" for edge in ("grid", "block") for axis in "xyz"))
    assert {row[name] for name in unknown} == {None}
    assert "kernel_untraced" in row["flags"]
    assert row["latency_s"] > 0
    assert row["power_w"] > 0
    assert rows_to_table([row], {}).num_rows == 1
    assert "kernel_untraced" not in traced["flags"]
    assert None not in {traced[name] for name in unknown}
