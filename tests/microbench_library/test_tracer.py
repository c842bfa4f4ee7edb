"""Kernels as CUPTI tells of them."""

import sys
from types import SimpleNamespace

import pytest

from collector.devices.tracer import CuptiTracer, demangled, open_tracer
from tests.microbench_library.cuda_fake import CuptiError, FakeCupti
from tests.processes import PYTHON, ended

ADD = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_"


def test_kernels_come_in_the_order_in_which_they_started():
    cupti = FakeCupti()
    tracer = CuptiTracer(cupti)

    def work():
        cupti.ran("nvjet_tst_128x64_64x6_2x1_v_bz_TNT", start=2_000, end=9_000, registers_per_thread=168)
        cupti.ran(ADD, start=1_000, end=1_500)
        cupti.ran("memset", start=500, end=600, kind=2)

    first, second = tracer.trace(work)
    assert first.name.startswith("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>")
    assert second.name == "nvjet_tst_128x64_64x6_2x1_v_bz_TNT"
    assert (second.grid, second.block, second.registers_per_thread) == ((16, 32, 1), (256, 1, 1), 168)
    assert second.shared_bytes_per_block == 34816
    assert second.duration_s == pytest.approx(7e-6)
    assert tracer.missing() == ""
    cupti.ran("between", 3, 4)
    assert tracer.trace(lambda: None) == ()


class LateCupti(FakeCupti):
    """Hands records over at the flush after the next `late` ones."""

    def __init__(self, late):
        super().__init__()
        self.late = late
        self.now_ns = 10**9

    def get_timestamp(self):
        self.now_ns += 10**8
        return self.now_ns

    def activity_flush_all(self, flag):
        if self.pending and self.late:
            self.late -= 1
            return
        super().activity_flush_all(flag)


@pytest.mark.parametrize("late, names", [(0, ["a", "b"]), (2, ["a", "b"]), (5, ["", "b"])])
def test_a_late_record_is_waited_for_and_never_taken_for_the_next_kernels(late, names):
    cupti = LateCupti(late)
    tracer = CuptiTracer(cupti)
    found = [tracer.trace(lambda name=name: cupti.ran(name, cupti.now_ns, cupti.now_ns + 5)) for name in "ab"]
    assert ["".join(kernel.name for kernel in one) for one in found] == names


@pytest.mark.parametrize("early_ns", [0, 20_000_000, "no time"])
def test_a_kernel_whose_clock_is_behind_or_was_not_read_keeps_its_name(early_ns):
    cupti = LateCupti(0)
    tracer = CuptiTracer(cupti)

    def work():
        start = 0 if early_ns == "no time" else cupti.now_ns - early_ns
        cupti.ran("a", start, start and start + 5)

    assert [kernel.name for kernel in tracer.trace(work)] == ["a"]


def test_a_first_trace_that_hangs_ends_its_process():
    program = """
import time
import collector.devices.tracer as tracer
from tests.microbench_library.cuda_fake import FakeCupti
tracer.FIRST_TRACE_S = 0.5
found = tracer.CuptiTracer(FakeCupti())
found.trace(lambda: time.sleep(60))
"""
    done = ended(*PYTHON, program)
    assert done.returncode == 1
    assert "Timeout" in done.stderr


def test_where_cupti_refuses_the_work_is_done_and_the_reason_kept():
    cupti = FakeCupti()
    cupti.refuse_enable = True
    done = []
    tracer = CuptiTracer(cupti)
    assert tracer.trace(lambda: done.append(1)) == ()
    assert done == [1]
    assert "NOT_COMPATIBLE" in tracer.missing()


def test_a_cupti_that_cannot_start_is_no_tracer(monkeypatch):
    def refuse(*_):
        raise CuptiError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")

    cupti = FakeCupti()
    cupti.activity_register_callbacks = refuse
    monkeypatch.setitem(sys.modules, "cupti", SimpleNamespace(cupti=cupti))
    assert "MULTIPLE_SUBSCRIBERS" in open_tracer.__wrapped__().missing()


@pytest.mark.parametrize("name", ["ampere_sgemm_128x64_tn", "", "_Znot_a_symbol", "_Z"])
def test_names_that_are_no_symbols_stay_as_they_are(name):
    assert demangled(name) == name
