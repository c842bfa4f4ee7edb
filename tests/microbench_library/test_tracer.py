"""Kernels as CUPTI tells of them."""

import pytest

from collector.devices.tracer import CuptiTracer, demangled, open_tracer
from tests.microbench_library.cuda_fake import CuptiError, FakeCupti

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


def test_where_cupti_refuses_the_work_is_done_and_the_reason_kept():
    cupti = FakeCupti()
    cupti.refuse_enable = True
    done: list[int] = []
    tracer = CuptiTracer(cupti)
    assert tracer.trace(lambda: done.append(1)) == ()
    assert done == [1]
    assert "NOT_COMPATIBLE" in tracer.missing()


def test_a_cupti_that_cannot_start_is_no_tracer():
    def refuse(*_):
        raise CuptiError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")

    cupti = FakeCupti()
    cupti.activity_register_callbacks = refuse  # type: ignore[method-assign]
    assert "MULTIPLE_SUBSCRIBERS" in open_tracer(cupti).missing()


@pytest.mark.parametrize("name", ["ampere_sgemm_128x64_tn", "", "_Znot_a_symbol", "_Z"])
def test_names_that_are_no_symbols_stay_as_they_are(name):
    assert demangled(name) == name
