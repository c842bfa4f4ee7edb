"""Energy from counts: published tables, modules, profiler tables; energy of instructions: classes, sums of terms, prices."""

import json
import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import BundleError
from estimator.bundle.files import save_bundle
from estimator.counts.activities import METRICS, CountedKernel, EnergyTable, load_energy_table, read_activities
from estimator.counts.counted_energy import INTEGRATIONS, PARTS, CountedEnergy, counted_energies, scaling
from estimator.counts.energies import (
    CONSTANT,
    HEAT,
    INSTRUCTION,
    ISSUE,
    LOOP,
    STALL,
    TRANSACTION,
    Activity,
    Expansion,
    InstructionEnergies,
    energies_from_section,
    section_of,
)
from estimator.counts.modules import Links, mean_hops, spread_over
from estimator.counts.opcodes import LANES, RARE, loop_classes, sass_class
from estimator.counts.prices import LIKE_SPREAD, is_matrix, price_of, products_of
from estimator.uncertainty.validity import SIMULATED
from estimator.vocabulary.errors import CountsError
from tests.estimator.estimating import printed
from tests.estimator.estimating import run as estimate
from tests.fitter.measured import PLANTED
from tests.words import one_line

K40 = load_energy_table("tesla-k40")
NANO = 1e-9
POSITIVE = st.floats(1e-6, 1e6)


def kernel(**changes):
    values = {"instructions": {"f32.fma": 1e9}, "issued": 0.0, "transactions": {"dram": 1e6}, "stalls": 0.0, "time_s": 0.01} | changes
    return CountedKernel(name="saxpy", launches=1.0, activity=Activity(**values))


def test_energy_is_equation_4_and_errors_of_kernels_with_the_same_energies_add_up_whole():
    """The error of an energy is the same in every kernel, so that it does not average out."""
    one = kernel(instructions={"f32.fma": 2e9, "i32.add": 1e9}, transactions={"l2": 3e6, "dram": 1e6})
    (row,), total, warnings = counted_energies([one], K40, constant_w=25.0)
    expected = (2e9 * 0.05 + 1e9 * 0.07 + 3e6 * 3.96 + 1e6 * 7.82) * NANO + 25.0 * 0.01
    assert row.energy_j == pytest.approx(expected, rel=1e-12)
    assert total.energy_j == row.energy_j
    assert sum(row.parts_j[part] for part in PARTS) == pytest.approx(row.energy_j, rel=1e-12)
    assert row.parts_j["constant"] == pytest.approx(0.25)
    assert warnings == ()
    _, four, _ = counted_energies([one] * 4, K40, constant_w=25.0)
    assert four.energy_std_j == pytest.approx(4 * total.energy_std_j, rel=1e-12)


# Several modules -----------------------------------------------------------------------------------------------------------------


def test_every_module_draws_the_constant_power_and_its_error():
    constant = replace(K40.energies, terms=(CONSTANT,), values=np.array([8.0]), covariance=np.array([[0.25]]), identified=(True,))
    (row,), total, _ = counted_energies(
        [kernel(instructions={}, transactions={})],
        replace(K40, energies=constant),
        constant_w=25.0,
        modules=4,
        integration=INTEGRATIONS["on-package"],
    )
    assert (row.energy_j, row.energy_std_j) == pytest.approx((33.0 * 2.5 * 0.01, 0.5 * 2.5 * 0.01))
    assert total.energy_std_j == row.energy_std_j


@given(energy=POSITIVE, time=POSITIVE, modules=st.integers(1, 64), exponent=st.floats(0, 3))
def test_a_linear_speed_up_at_constant_energy_is_100_percent(energy, time, modules, exponent):
    """EDⁱPSE."""
    one = CountedEnergy(name="", launches=1.0, time_s=time, energy_j=energy, energy_std_j=0.0, parts_j={})
    found = scaling(one, replace(one, time_s=time / modules), modules, exponent)
    assert found["scaling_efficiency_percent"] == pytest.approx(100.0, rel=1e-9)


@pytest.mark.parametrize("modules", range(2, 34))
def test_hops_on_a_ring_are_the_mean_of_the_shorter_ways(modules):
    ways = [min(step, modules - step) for step in range(1, modules)]
    assert mean_hops(modules, "ring") == pytest.approx(sum(ways) / len(ways))
    assert mean_hops(modules, "switch") == 1.0


@given(
    modules=st.integers(1, 64),
    gbps=st.floats(1.0, 1e4),
    local=st.none() | st.floats(0.0, 1.0),
    lines=st.floats(0.0, 1e10),
    topology=st.sampled_from(["ring", "switch"]),
)
def test_time_on_modules_is_the_longer_of_the_works_share_and_the_links_time(modules, gbps, local, lines, topology):
    one = kernel(transactions={"dram": lines}, issued=3e6, stalls=1e6)
    links = Links(bytes_per_s=gbps * 1e9, topology=topology, local_share=local)
    several = spread_over(one, modules, links)
    time_s = several.activity.time_s
    assert time_s >= one.activity.time_s / modules * (1 - 1e-12)
    assert modules * links.bytes_per_s * time_s >= several.link_bytes * (1 - 1e-12)
    assert several.link_bytes <= 32 * lines * (modules // 2)
    slots = several.activity.issued + several.activity.stalls
    assert slots / (modules * time_s) == pytest.approx(4e6 / one.activity.time_s), "slots of all modules pass at the same rate"
    if modules == 1 or local == 1.0:
        assert several.link_bytes == 0.0
        assert time_s == one.activity.time_s / modules


# Counts --------------------------------------------------------------------------------------------------------------------------

LONG = """==PROF== Connected to process 12
"ID","Process ID","Kernel Name","Block Size","Grid Size","Section Name","Metric Name","Metric Unit","Metric Value"
"0","12","saxpy(float*)","(256, 1, 1)","(1,024, 1, 1)","metrics","gpu__time_duration.sum","usecond","10.5"
"0","12","saxpy(float*)","(256, 1, 1)","(1024, 1, 1)","metrics","smsp__sass_thread_inst_executed_op_ffma_pred_on.sum","inst","262,144"
"0","12","saxpy(float*)","(256, 1, 1)","(1024, 1, 1)","metrics","dram__sectors_read.sum","sector","65,536"
"0","12","saxpy(float*)","(256, 1, 1)","(1024, 1, 1)","metrics","dram__sectors_write.sum","sector","32,768"
"0","12","saxpy(float*)","(256, 1, 1)","(1024, 1, 1)","metrics","l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","sector","4,000"
"0","12","saxpy(float*)","(256, 1, 1)","(1024, 1, 1)","metrics","smsp__cycles_active.sum","cycle","1000"
"0","12","saxpy(float*)","(256, 1, 1)","(1024, 1, 1)","metrics","smsp__issue_active.sum","cycle","400"
"""
JSON = json.loads("""{
"format": "wattprint-activity", "format_version": 1, "kernels": [{
"name": "gemm", "time_s": 1e-3, "launches": 3, "opcodes": {"FFMA": 1e6, "BRA": 1e3, "LDG.E": 1e4}, "lanes": 16,
"transactions": {"dram": 1e5}, "stalls": 0
}]}""")


def test_a_profilers_table_is_an_activity(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text(LONG)
    (found,) = read_activities(path, "sass")
    assert found.activity.time_s == pytest.approx(10.5e-6)
    assert found.activity.instructions == {"FFMA": 262144.0}
    assert found.activity.transactions == {"l1": 1000.0, "dram": 98304.0}
    assert found.activity.stalls == 600.0
    assert "smsp__inst_executed.sum" in found.missing
    assert not any("tensor" in name or "nvl" in name for name in found.missing)
    assert read_activities(path, "joule")[0].activity.instructions == {"f32.fma": 262144.0}


def test_a_unit_that_is_not_known_and_a_negative_count_count_as_missing(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text(LONG.replace('"sector","32,768"', '"furlong","32,768"').replace('"sector","65,536"', '"sector","-5"'))
    (found,) = read_activities(path, "sass")
    assert "dram" not in found.activity.transactions
    assert {"dram__sectors_read.sum", "dram__sectors_write.sum"} <= set(found.missing)
    time = '"gpu__time_duration.sum",'
    for cells in ('"parsec","10.5"', '"msecond","0,32"', '"nsecond","1.234,5"', '"nsecond","n/a"'):
        path.write_text(re.sub(f'{time}"[^"]*","[^"]*"', time + cells, LONG))
        with pytest.raises(CountsError, match=r"has no gpu__time_duration\.sum above 0 in a known unit"):
            read_activities(path, "sass")


def test_opcodes_are_classes_by_active_lane(tmp_path):
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(JSON), encoding="utf-8-sig")  # as Windows' editors write it
    (found,) = read_activities(path, "sass")
    assert found.launches == 3
    assert found.activity.instructions == {"FFMA": 16e6}, "branches have no lanes, loads are transactions"
    assert found.activity.issued == 1e6 + 1e3 + 1e4
    with pytest.raises(CountsError, match="energies are of PTX types"):
        read_activities(path, "joule")


def entry(**changes):
    """Counts of a kernel of which some differ; None leaves a field out."""
    one = {key: value for key, value in (JSON["kernels"][0] | changes).items() if value is not None}
    return json.dumps({**JSON, "kernels": [one]})


def ptx(instructions, lines, **changes):
    """Counts of PTX types."""
    return entry(opcodes=None, lanes=None, launches=None, instructions={"f32.fma": instructions}, transactions={"dram": lines}, **changes)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "no line begins"),
        ("{", "not valid JSON"),
        ('{"format": "x"}', "lacks the field 'format_version'"),
        (json.dumps({**JSON, "format_version": 2}), "format_version"),
        (json.dumps({**JSON, "kernels": []}), "must not be empty"),
        (entry(time_s=0), "time_s = 0 lies outside"),
        (entry(launches=1e23), "launches = 1e.23 lies outside"),
        (entry(opcodes=None), "either opcodes or instructions"),
        (entry(transactions={"l3": 1}), "'l3' is unknown"),
        (LONG.replace("usecond", "n/a").replace("10.5", "n/a"), "gpu__time_duration.sum"),
        (LONG.rstrip()[:-2], "a line or a column is not whole"),
        ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ERR_NVGPUCTRPERM"),
    ],
)
def test_counts_that_cannot_be_used_say_why(text, message, tmp_path):
    path = tmp_path / "counts"
    path.write_text(text)
    with one_line(CountsError, match=message) as caught:
        read_activities(path, "sass")
    assert str(path) in str(caught.value)


# The command ---------------------------------------------------------------------------------------------------------------------


run, answer = (partial(asked, "counts") for asked in (estimate, printed))


def test_the_command_prints_parts_and_scaling(tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(ptx(1e12, 1e9, time_s=1.0))
    two.write_text(ptx(1e12, 1e9, time_s=0.55, link_bytes=1e9))
    words = "--energies tesla-k40 --constant-w 25 --dram-pj-per-bit 21.1"
    pair = f"{two} {words} --modules 2 --integration on-package --against {one}"
    document, alone = answer(pair), answer(one, words)
    assert alone["parts_j"]["dram"] == pytest.approx(1e9 * 256 * 21.1e-12)
    assert document["parts_j"]["link"] == pytest.approx(8e9 * 0.54e-12)
    assert document["parts_j"]["constant"] == pytest.approx(25.0 * 1.5 * 0.55)
    expected = 100 * alone["energy_j"] * 1.0 / (2 * document["energy_j"] * 0.55)
    assert document["scaling_efficiency_percent"] == pytest.approx(expected)
    assert "scaling_efficiency_percent: " in run(pair).out


def test_the_command_predicts_several_modules_from_the_counts_of_one(tmp_path):
    path = tmp_path / "one.json"
    path.write_text(ptx(1e11, 8e9, time_s=1.0))
    words = f"{path} --energies tesla-k40 --constant-w 25 --link-gbps 128 --json --integration"
    found = run(f"{words} on-board --modules 1,2,32 --local-share 0.25")
    one, two, many = json.loads(found.out)
    assert (one["speedup"], one["energy_ratio"], one["scaling_efficiency_percent"]) == (1.0, 1.0, 100.0)
    # 256 GB, three quarters of them over one link of 128 GB/s each way of two modules: 0.75 s instead of 0.5 s.
    assert two["time_s"] == pytest.approx(0.75)
    assert two["link_j"] == pytest.approx(0.75 * 256e9 * 8 * 10e-12)
    assert two["constant_j"] == pytest.approx(25.0 * 2 * 0.75)
    assert many["time_s"] == pytest.approx(0.75 * 256 * (256 / 31) / (32 * 128))
    assert "the DRAM's traffic is 25 % local" in found.err
    (switched,) = answer(f"{words} switched --modules 32")
    assert (switched["topology"], switched["local_share"]) == ("switch", 1 / 32)
    assert switched["time_s"] == pytest.approx(31 / 32 * 256 / (32 * 128))


@pytest.mark.parametrize(
    "words, message",
    [
        ("x.json --energies tesla-k40 --modules 1,2", "need --link-gbps"),
        ("x.json --energies tesla-k40 --modules 2 --topology ring", "need --link-gbps"),
        ("x.json --energies tesla-k40 --link-gbps 9", "--modules of 2 and more"),
        ("x.json --energies tesla-k40 --modules 2 --link-gbps 9 --against x.json", "COUNTS are that run"),
        ("x.json --energies tesla-k40 --modules 5000", "at most 4096"),
        ("x.json --energies tesla-k40 --modules 0", "--modules"),
        ("", "name files of COUNTS"),
        ("x.json", "either --bundle or --energies"),
        ("x.json --energies tesla-k41", "there are tesla-k40"),
        ("x.json --energies tesla-k40 --freq 900", "--freq is for --bundle"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(words, message):
    found = run(words or ())
    assert (found.out, message in found.err) == ("", True)


def test_the_command_names_the_metrics_that_it_reads():
    assert run("--metrics").out.strip() == ",".join(METRICS)


@pytest.mark.parametrize(
    "clock_mhz, validity, warning",
    [
        (None, "measured", ""),
        (1215, "measured", ""),
        (900, "extrapolated", "SM clock 900 MHz is outside the fitted range 1200 to 1410 MHz"),
    ],
)
def test_the_answer_says_its_clock_and_whether_it_holds(clock_mhz, validity, warning, tmp_path):
    path, bundle = tmp_path / "counts.json", tmp_path / "bundle.json"
    section = section_of(replace(K40.energies, reference_clock_mhz=1410.0))
    fields = {"instruction_energies": section, "clocks_mhz": (1200.0, 1410.0), "environment": {"simulated": "true"}}
    save_bundle(replace(PLANTED, **fields), bundle)
    path.write_text(ptx(1e9, 1e6, time_s=1.0))
    words = f"{path} --bundle {bundle} --constant-w 40 --json {f'--freq {clock_mhz}' if clock_mhz else ''}"
    found = run(words)
    document = json.loads(found.out)
    assert document["sm_clock_mhz"] == (clock_mhz or 1410)
    assert (document["validity"], document["simulated"]) == (validity, True)
    assert (found.status, run(words, "--strict").status) == (0, 3 * bool(warning))
    assert warning in found.err
    assert found.err.count("warning: ") == bool(warning)
    assert f"note: {SIMULATED.format('planted')}" in found.err, "as estimate and estimate blocks say"
    path.write_text(ptx(1e9, 1e6, time_s=1.0, stalls=9))
    assert run(words).status == 3, "an energy that lacks work"


def test_constant_power_must_be_known_and_classes_too():
    with pytest.raises(CountsError, match="--constant-w"):
        counted_energies([kernel()], K40)
    with pytest.raises(CountsError, match="has no energy of f32.fmaa; it knows"):
        counted_energies([kernel(instructions={"f32.fmaa": 1.0})], K40, constant_w=1.0)
    _, total, warnings = counted_energies([kernel(stalls=5.0)], K40, constant_w=1.0)
    assert (total.complete, warnings) == (False, ("no energy of stalls; taken as none",))
    with pytest.raises(CountsError, match="--integration"):
        counted_energies([kernel()], K40, constant_w=1.0, modules=2)


DENSE_J, RARE_J = 80e-12, 4e-12
MATRIX = (
    "HMMA.16816.F32",
    "HMMA.SP.16832.F32",
    "HMMA.1688.F32",
    "HMMA.16816.F16",
    "HMMA.SP.16832.F32.BF16",
    "IMMA.16832.S8.S8.SAT",
    "DMMA.884",
)


def energies(**added):
    """The energies of the other tests, with further classes."""
    values = np.array([*ENERGIES.values, *added.values()])
    return replace(
        ENERGIES,
        terms=(*ENERGIES.terms, *(INSTRUCTION + name.replace("_", ".") for name in added)),
        values=values,
        covariance=np.diag((0.01 * values) ** 2),
        identified=(True,) * len(values),
    )


def activity(name):
    return Activity(instructions={name: 1e9}, issued=0.0, transactions={}, stalls=0.0, time_s=0.0)


@pytest.mark.parametrize(
    "name, products",
    [("HMMA.16816.F32", 2048), ("HMMA.SP.16832.F32", 2048), ("HMMA.1684.F32.TF32", 512), ("DMMA.8x8x4", 256),
     ("BMMA.168256.AND.POPC", 32768), ("HGMMA.64x256x16.F32.BF16", 262144), ("IMMA.8816.S8.S8.SAT", 1024), ("FFMA", 0), ("HMMA", 0)],
)  # fmt: skip
def test_the_products_of_a_matrix_instruction_are_in_its_name(name, products):
    assert products_of(name) == products


@given(st.sampled_from(MATRIX), st.sets(st.sampled_from([*MATRIX, "FFMA", "DFMA", RARE])))
def test_a_matrix_product_is_never_priced_as_a_rare_instruction(name, known):
    price = price_of(name, known)
    assert price.name in {one for one in known if is_matrix(one)} | {""}
    assert (price.reason == "") == (name in known)
    if price.name:
        assert price.factor == pytest.approx(products_of(name) / products_of(price.name))
        assert price.name.split(".")[0] == name.split(".")[0]


def test_counts_priced_at_a_dense_product_of_their_type_cost_what_it_costs_are_warned_about_and_less_sure():
    known = energies(HMMA_16816_F32=DENSE_J, HMMA_16816_F16=0.5 * DENSE_J, rare=RARE_J)
    names = ("HMMA.SP.16832.F32", "HMMA.1688.F32", "HMMA.16816.F32", "DMMA.884")
    sparse, half, dense, unlike = (kernel(instructions={name: 1e9}, transactions={}) for name in names)
    table = EnergyTable(name="made", source="", vocabulary="sass", energies=known, constant_w=40.0)
    rows, total, warnings = counted_energies([replace(sparse, launches=3.0), half, dense], table)
    reason = "is of low confidence: no run is made of it; at the energy of HMMA.16816.F32"
    assert warnings == (f"energy of HMMA.1688.F32 {reason} times 0.5", f"energy of HMMA.SP.16832.F32 {reason}")
    assert [row.parts_j["instructions"] for row in rows] == pytest.approx([3e9 * DENSE_J, 0.5e9 * DENSE_J, 1e9 * DENSE_J])
    assert known.energy_j(activity(names[1]))[1] == pytest.approx(np.hypot(0.01, LIKE_SPREAD) * 0.5e9 * DENSE_J)
    assert min(rows[0].energy_std_j, total.energy_std_j) > LIKE_SPREAD * 3.0 * DENSE_J * 1e9
    assert rows[2].energy_std_j < 0.02 * rows[2].energy_j
    with pytest.raises(CountsError, match=r"made has no energy of DMMA\.884"):
        counted_energies([unlike], table)


def test_a_kernel_of_which_nothing_is_counted_has_an_unknown_error_not_none():
    rows, total, _ = counted_energies([kernel(instructions={}, transactions={})], K40, constant_w=40.0)
    assert rows[0].energy_j == total.energy_j == pytest.approx(0.4)
    assert np.isnan([rows[0].energy_std_j, total.energy_std_j]).all()


TERMS = (CONSTANT, STALL, ISSUE, LOOP, f"{INSTRUCTION}FFMA", f"{INSTRUCTION}LOP3", f"{TRANSACTION}l2", f"{TRANSACTION}dram")
VALUES = np.array([60.0, 5e-11, 7e-11, 2e-12, 4e-12, 2e-12, 5e-10, 1.5e-9])
ENERGIES = InstructionEnergies(
    terms=TERMS,
    values=VALUES,
    covariance=np.diag((0.01 * VALUES) ** 2),
    identified=(True,) * len(TERMS),
    reference_voltage_v=0.9,
    reference_clock_mhz=1410.0,
    temperature_c=50.0,
    scatter=0.002,
    rows=100,
    ptx={"ffma": Expansion(instruction="fma.rn.f32", classes={"FFMA": 1.0}, issued=1.0, energy_j=6e-12, std_j=1e-13)},
)
COUNTS = st.floats(min_value=0.0, max_value=1e15)


def activities():
    return st.builds(
        Activity,
        instructions=st.fixed_dictionaries({"FFMA": COUNTS, "LOP3": COUNTS}),
        issued=COUNTS,
        transactions=st.fixed_dictionaries({"l2": COUNTS, "dram": COUNTS}),
        stalls=COUNTS,
        time_s=st.floats(min_value=0.0, max_value=100.0),
        loops=COUNTS,
    )


CLASSES = {
    "": "LDG.E.128.STRONG.GPU STS REDG.E.ADD RED.E.ADD UIADD3 BRA LDGDEPBAR", "FFMA": "FFMA FFMA.FTZ", "HFMA2": "HFMA2.MMA",
    "HFMA2.BF16_V2": "HFMA2.MMA.BF16_V2", "HMMA.16816.F32.BF16": "HMMA.16816.F32.BF16", "IADD3": "IADD3.X", "IDP.4A": "IDP.4A.S8.S8",
    "IMAD.HI": "IMAD.HI.U32", "ISETP": "ISETP.GE.AND", "LOP3": "LOP3.LUT", "MUFU.EX2": "MUFU.EX2.F16", "REDUX": "REDUX.SUM.S32",
    "SHF": "SHF.L.W.U32.HI",
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_an_opcode_has_the_class_of_what_it_does(name):
    assert {sass_class(opcode) for opcode in CLASSES[name].split()} == {name}


@given(st.integers(1, 4096), st.sampled_from(["UISETP.NE.AND", "ISETP.NE.U32.AND"]))
def test_loop_control_is_taken_out_of_a_body_once(count, test):
    classes, issued = loop_classes({"FFMA": count, "UIADD3": 1, test: 1, "BRA": 1})
    assert classes == {"FFMA": count}
    assert issued == count + 3


def test_comparisons_of_the_work_itself_stay_in_the_body():
    classes, _ = loop_classes({"ISETP.NE.U32.AND": 1, "ISETP.EQ.U32.AND": 32, "SEL": 32, "UIADD3": 1, "BRA": 3})
    assert classes["SEL"] == 32
    assert classes["ISETP"] == 32


@given(activities(), st.floats(0.5, 1.2))
def test_core_energy_goes_with_the_square_of_the_voltage_and_that_of_dram_does_not(activity, volt):
    core = replace(activity, transactions={}, time_s=0.0)
    there = ENERGIES.energy_j(replace(core, voltage_v=volt))[0]
    assert there == pytest.approx(ENERGIES.energy_j(core)[0] * (volt / 0.9) ** 2)
    dram = Activity(instructions={}, issued=0.0, transactions={"dram": 1e9}, stalls=0.0, time_s=0.0, voltage_v=volt)
    assert ENERGIES.energy_j(dram)[0] == pytest.approx(1.5)


def test_the_clock_of_the_energies_changes_nothing_and_further_clocks_are_less_sure(tmp_path):
    """Energies at a voltage that is not that of the board's table, and their error of a share of the whole at each clock."""
    path, bundle = tmp_path / "counts.json", tmp_path / "bundle.json"
    save_bundle(replace(PLANTED, instruction_energies=section_of(ENERGIES)), bundle)
    one = {"name": "a", "time_s": 1.0, "opcodes": {"FFMA": 1e9}, "transactions": {"l2": 1e9}, "stalls": 1e9}
    path.write_text(json.dumps({"format": "wattprint-activity", "format_version": 1, "kernels": [one]}))
    words = f"{path} --bundle {bundle} --json"
    own, *others = (json.loads(run(f"{words} {freq}").out) for freq in ("", "--freq 1410", "--freq 1200", "--freq 900"))
    assert others[0] == own
    shares = [found["energy_std_j"] / found["energy_j"] for found in others]
    assert shares[1] > 3.0 * shares[0]
    assert shares[2] > shares[1]


@given(st.floats(0.5, 1.2))
def test_a_warmer_boards_leakage_goes_with_the_fourth_power_of_the_voltage(volt):
    warmer = replace(ENERGIES, terms=(*TERMS[:-1], HEAT))
    one = Activity(instructions={}, issued=0.0, transactions={}, stalls=0.0, time_s=1.0, kelvin=10.0, sm_clock_mhz=1410.0)
    weights = [warmer.weights(replace(one, voltage_v=at))[-1] for at in (0.9, volt)]
    assert weights == pytest.approx([10.0, 10.0 * (volt / 0.9) ** 4])


def test_energy_per_instruction_holds_its_share_of_the_issue():
    value, std = ENERGIES.epi_j("FFMA")
    assert value == pytest.approx(4e-12 + 7e-11 / LANES)
    assert std == pytest.approx(math.hypot(4e-14, 7e-13 / LANES))


def test_a_class_that_was_not_measured_is_named():
    with pytest.raises(BundleError, match=r"no energy of DFMA in this bundle; measure it with"):
        ENERGIES.energy_j(activity("DFMA"))


def test_the_section_gives_the_energies_back():
    section = json.loads(json.dumps(section_of(ENERGIES)))
    assert section_of(energies_from_section(section)) == section_of(ENERGIES)
    assert section["transactions"]["dram"]["pj_per_bit"] == pytest.approx(1.5e3 / 256)
    assert energies_from_section({}) is None


@pytest.mark.parametrize(
    "change, complaint",
    [
        ({"covariance": [[-1.0] * 8] * 8}, "a variance must not be negative"),
        ({"terms": ["issue"] * 8}, "terms holds a term twice"),
        ({"ptx": {"ffma": {"foreign": 1}}}, "ptx.ffma has an unknown field 'foreign'"),
        ({"instructions": {"FFMA": {"epi_j": 1e-12, "std_j": 1e-13, "identified": True, "surprise": 1}}}, "unknown field 'surprise'"),
    ],
)
def test_a_damaged_section_is_refused_in_one_line(change, complaint):
    with one_line(BundleError, match=complaint):
        energies_from_section({**section_of(ENERGIES), **change})
