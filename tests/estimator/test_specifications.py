"""GPU specifications: published peak rates come out of the files, and nothing wrong gets in."""

import json
import pickle
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import SpecificationError, load_gpu, override_gpu
from estimator.vocabulary.specifications import FIGURES, RATE_TABLES, canonical_gpu_name, document_of_gpu, gpu_from_document, gpu_names
from microbench.loads.generated import architecture_of

PUBLISHED = """
a100-pcie-40gb  bf16 312    tf32 156   int8 624  fp64 19.5 | fp32 19.5  fp64 9.7  fp16 78  bf16 39
a100-pcie-80gb  bf16 312    tf32 156   int8 624  fp64 19.5 | fp32 19.5  fp64 9.7  fp16 78  bf16 39
a100-sxm-40gb   bf16 312    tf32 156   int8 624  fp64 19.5 | fp32 19.5  fp64 9.7  fp16 78  bf16 39
a100-sxm-80gb   bf16 312    tf32 156   int8 624  fp64 19.5 | fp32 19.5  fp64 9.7  fp16 78  bf16 39
h100-sxm        bf16 989.4  fp8 1978.9  tf32 494.7  fp64 66.9@1980 | fp32 66.9@1980  fp16 133.8@1980  fp64 33.5@1980
h200-sxm        bf16 989.4  fp8 1978.9  tf32 494.7  fp64 66.9@1980 | fp32 66.9@1980  fp16 133.8@1980  fp64 33.5@1980
h100-pcie       bf16 756    fp8 1513   | fp32 51.2@1755
b200-sxm        bf16 2250   fp8 4500   nvfp4 9000  | fp32 75@1965
gb200           bf16 2500   fp8 5000   nvfp4 10000 | fp32 80@2055
a10             bf16 125    tf32 62.5  int8 250 | fp32 31.2
l40s            bf16 362.05 fp8 733    | fp32 91.6
l4              bf16 121    fp8 242.5  | fp32 30.3
v100-pcie-32gb  fp16 112    | fp32 14   fp64 7
t4              fp16 65     int8 130   | fp32 8.1
rtx-3090        bf16 71     int8 284   | fp32 35.6
rtx-4090        bf16 165.2  fp8 330.3  | fp32 82.6
a40             bf16 149.7  int8 299.3 |
rtx-6000-ada    bf16 364.2  | fp32 91.1
h100-nvl        bf16 835.5  |
h200-nvl        fp8 1671    |
b300-sxm        bf16 2250   nvfp4 13500 |
rtx-5090        bf16 209.5  nvfp4 1676 | fp32 104.8
rtx-3060        bf16 25.5   | fp32 12.7
rtx-4060-ti     bf16 44.1   | fp32 22.1
rtx-4080        bf16 97.5   fp8 194.9  tf32 48.7  int8 389.9 | fp32 48.7
rtx-5080        bf16 112.6  nvfp4 900.4 | fp32 56.3
rtx-a6000       bf16 154.8  | fp32 38.7
rtx-pro-6000    nvfp4 2000  | fp32 126
l20             fp16 119.5  fp8 239 | fp32 59.35
titan-v         | fp32 14.9  fp64 7.45
titan-rtx       fp16 130.5  | fp32 16.3
v100-sxm2-32gb  fp16 125    | fp32 15.7  fp64 7.8
rtx-8000        fp16 130.5  | fp32 16.3
rtx-2080-ti     fp16 53.8   | fp32 13.45
a2              fp16 18.1   int8 36.3 | fp32 4.53
a16             fp16 17.9   | fp32 4.5
rtx-3070        bf16 40.6   | fp32 20.3
rtx-4070        | fp32 29.15
rtx-4090-d      bf16 147.1  fp8 294.2 | fp32 73.5
rtx-5000-ada    bf16 261.1  | fp32 65.3
rtx-4500-ada    | fp32 39.6
rtx-pro-6000-max-q  | fp32 110.1
gb300           bf16 2500   nvfp4 15000 | fp32 80@2055
"""
"""Dense peak rates as the vendor prints them [TFLOP/s], at another clock than the quoted tensor clock after @ [MHz]; CUDA cores after |."""

PUBLISHED_RATES = [
    (line.split()[0], precision, cuda_cores, *rate.partition("@")[::2])
    for line in PUBLISHED.strip().splitlines()
    for cuda_cores, part in enumerate(line.partition(" ")[2].split("|"))
    for precision, rate in re.findall(r"(\w+) ([\d.@]+)", part)
]

RATE_TOLERANCE = 0.02  # published rates are rounded, and L40S is printed 1.2 % below its units times its clock


@pytest.mark.parametrize("gpu, precision, cuda_cores, tflop_per_s, clock_mhz", PUBLISHED_RATES)
def test_peak_rate_is_the_published_one(gpu, precision, cuda_cores, tflop_per_s, clock_mhz):
    spec = load_gpu(gpu)
    table = spec.cuda_flop_per_clock if cuda_cores else spec.tensor_flop_per_clock
    rate = table[precision] * spec.num_sms * float(clock_mhz or spec.sm_clock_max_mhz) * 1e6
    assert rate == pytest.approx(float(tflop_per_s) * 1e12, rel=RATE_TOLERANCE)


@pytest.mark.parametrize("name", gpu_names())
def test_a_specification_is_whole_consistent_and_survives_its_plain_form(name):
    spec = load_gpu(name)
    unknown = {name for name in ("asleep_w", "sm_clock_usual_mhz") if not getattr(spec, name)}
    assert set(spec.sources) == {*FIGURES, *RATE_TABLES, "process", "memory", "asleep_w"} - unknown
    assert all(getattr(spec, table) is None or getattr(spec, table).source for table in ("voltage_v", "idle_w"))
    assert (spec.clocks_mhz()[0], spec.clocks_mhz()[-1]) == (spec.sm_clock_min_mhz, spec.sm_clock_limit_mhz)
    transfers = 2.0  # a clock, on HBM and on GDDR5/6(X) by the clock that NVML reports
    bus_bits = spec.dram_bytes_per_s * 8.0 / (spec.memory_clock_mhz * 1e6 * transfers)
    assert bus_bits == pytest.approx(32.0 * round(bus_bits / 32.0), rel=0.03)  # data sheets round 4.92 TB/s to 4.8
    for text in re.findall(r"(\d+) MiB", spec.sources["dram_bytes"]):  # the driver's figure
        assert spec.dram_bytes == pytest.approx(int(text) * 2**20, rel=0.01)
    for text in re.findall(r"nvidia-smi[^0-9;]*: ([0-9]+) W", spec.sources["power_limit_w"]):
        assert spec.power_limit_w == int(text)
    assert gpu_from_document(document_of_gpu(spec), "test") == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize("name, tflop_per_s, architecture", [("gtx-1080-ti", 11.34, "sm_61"), ("gtx-titan-x", 6.6, "sm_52")])
def test_an_example_of_an_older_board_has_its_published_rate_and_a_target(repository, name, tflop_per_s, architecture):
    spec = load_gpu(repository / "examples" / f"{name}.toml")
    assert spec.cuda_flop_per_clock["fp32"] * spec.num_sms * spec.sm_clock_max_mhz * 1e-6 == pytest.approx(tflop_per_s, rel=RATE_TOLERANCE)
    assert architecture_of(spec) == architecture


def test_clock_tables_agree_with_the_recorded_ones(shared_data):
    for gpu in ("a100-pcie-40gb", "a100-sxm-80gb", "h100-sxm"):
        for file, field, scale in (("idle_w", "idle_w", 1.0), ("voltage_mv", "voltage_v", 1e-3)):
            path = shared_data / "energaizer" / "gpu" / f"{gpu}.{file}.json"
            table = getattr(load_gpu(gpu), field)
            if table is None:
                assert not path.exists()
                continue
            recorded = {float(clock): value * scale for clock, value in json.loads(path.read_text()).items()}
            assert len(recorded) - len(table.value) <= 1
            for clock, value in zip(table.sm_clock_mhz, table.value, strict=True):
                assert value == pytest.approx(recorded[clock], abs=1e-6)


@pytest.mark.parametrize(
    "reported, name",
    [
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"), ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"), ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("RTX_3090", "rtx-3090"),
        ("NVIDIA TITAN V", "titan-v"), ("TITAN RTX", "titan-rtx"), ("h100", "h100-sxm"), ("RTX6000 Ada", "rtx-6000-ada"),
        ("NVIDIA L2", None), ("NVIDIA A100-PCIE-40GB MIG 1g.5gb", None), ("", None),
    ],
)  # fmt: skip
def test_product_names_of_the_driver_lead_to_the_specification(reported, name):
    assert canonical_gpu_name(reported) == name


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"tensor_flop_per_clock": {"bf17": 2048}}, "tensor_flop_per_clock has a wrong name: 'bf17' is unknown"),
        ({"cuda_flop_per_clock": {"fp16": 256}}, "cuda_flop_per_clock lacks fp32"),
        ({"sm_clock_max_mhz": 1500}, "must lie within sm_clock_min_mhz = 210 and sm_clock_limit_mhz = 1410"),
        ({"sm_clock_usual_mhz": 1500}, "sm_clock_usual_mhz = 1500 must lie within"),
        ({"power_limit_w": 40}, "power_limit_w = 40 must lie above power at rest, 4[0-9.]+ W in idle_w"),
        ({"asleep_w": 90}, "asleep_w = 90 must not lie above power at rest, 67[0-9.]+ W in idle_w"),
        ({"silicon_clock_mhz": 100}, "silicon_clock_mhz = 100 must not lie below sm_clock_limit_mhz = 1410"),
        ({"compute_capability": "80"}, "compute_capability = '80' must read as 9.0"),
        ({"idle_w": {"sm_clock_mhz": [300, 210], "value": [40, 41], "source": "x"}}, r"idle_w\.sm_clock_mhz must ascend"),
        ({"idle_w": {"sm_clock_mhz": [210, 300], "value": [40], "source": "x"}}, r"idle_w\.value has 1 values where 2"),
        (
            {"voltage_v": {"sm_clock_mhz": [210], "value": [693.75], "source": "x"}},
            r"voltage_v\.value\[0\] = 693.75 lies outside",
        ),
    ],
)
def test_wrong_figure_is_refused_with_its_key(changes, message):
    with pytest.raises(SpecificationError, match=message):
        gpu_from_document(document_of_gpu(load_gpu("a100-pcie-40gb")) | changes, "here")


def test_override_replaces_figures_and_says_so_in_their_source():
    spec = override_gpu(load_gpu("a100-pcie-40gb"), {"num_sms": "132", "tensor_flop_per_clock.bf16": "4096", "dram_bytes_per_s": "3.35e12"})
    assert (spec.num_sms, spec.tensor_flop_per_clock["bf16"], spec.dram_bytes_per_s) == (132, 4096.0, 3.35e12)
    assert spec.tensor_flop_per_clock["tf32"] == 1024.0
    assert spec.sources["num_sms"] == "set by the user"
    assert load_gpu("a100-pcie-40gb").num_sms == 108


@given(st.text(max_size=30), st.text(max_size=30))
def test_override_never_fails_but_with_its_own_error(key, value):
    spec = load_gpu("a10")
    with suppress(SpecificationError):
        override_gpu(spec, {key: value})
