"""The page of a dataset: what it states, what it leaves out, and that it stays small and safe whatever the data hold."""

import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from collector.campaigns.page import dataset_page, deviations
from collector.dataset.schema import FLAGS
from tests.collector.dataset_rows import METADATA, a_row, rows_to_table, write_kernel_dataset, write_log
from tests.fitter.page import Page
from tests.words import answer, refused

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
POWER_CAP = 0x04


def dataset(folder, rows, **metadata):
    path = folder / "dataset.parquet"
    write_kernel_dataset(rows, {**METADATA, "complete": True, **metadata}, path)
    return path


def a_campaign():
    """Rows of two clocks, every tenth of which is throttled, with repeated kernels at the end."""
    rows = []
    for i in range(120):
        throttled = i % 10 == 0
        clock = (510.0, 1410.0)[i % 2]
        at_limit = {"flags": ["throttled"], "throttle_reasons": POWER_CAP} if throttled else {}
        warm = {"temperature_c": 40.0 + i / 10, "started_unix_s": 1.7e9 + 60.0 * i, "idle_before_w": 50.0}
        clocks = {"sm_clock_mhz": clock, "sm_clock_measured_mhz": clock - 30.0 * throttled}
        rows.append(a_row(f"r{i}", m=64 * (i + 1), power_w=100.0 + i, **warm, **clocks, **at_limit))
    again = [{**rows[i], "row_id": f"again{i}", "trial": 1, "power_w": rows[i]["power_w"] * 1.02} for i in (1, 3, 5)]
    return rows + again


def test_the_page_states_what_was_measured_and_what_is_doubtful(tmp_path):
    idle = [{"sm_clock_mhz": 510.0, "power_w": 45.25, "std_w": None, "temperature_c": 38.0}]
    path = dataset(tmp_path, a_campaign(), rejected={"needs more memory than the board has": 7}, idle=idle, simulated=True)
    text, rows = dataset_page(path)
    page = Page(text)
    assert rows == 123
    assert page.open == []
    assert {"summary", "power", "rest", "drift", "throttling", "flags", "rejected"} <= set(page.having("id"))
    assert len(page.all("svg")) == 5
    words = re.sub(r"<[^>]+>", " ", text)
    for part in ("123 with time", "7 kernels", "needs more memory", "throttled 12 (9.8%)", FLAGS["throttled"], "sw_power_cap", "45.25"):
        assert part in words, part
    assert "say nothing about a GPU" in words
    assert "did not finish" not in words
    assert "power within 0.99 %" in words


def test_repeated_rows_deviate_from_their_own_mean_and_no_others():
    rows = [a_row("a", power_w=99.0), a_row("b", power_w=101.0, trial=1), a_row("c", power_w=300.0, m=999)]
    rows += [a_row("d", power_w=900.0, trial=2, flags=["throttled"]), a_row("e", power_w=None, trial=3)]
    found = deviations(rows_to_table(rows, METADATA))
    np.testing.assert_allclose(found["power_w"], [-1.0, 1.0, np.nan, np.nan, np.nan])
    np.testing.assert_allclose(found["latency_s"], [0.0, 0.0, np.nan, np.nan, 0.0], atol=1e-12)


def test_the_page_of_many_rows_is_as_large_as_that_of_few(tmp_path):
    sizes = []
    for times in (100, 400):
        table = rows_to_table(a_campaign(), METADATA)
        ids = [f"{i}-{row}" for i in range(times) for row in range(table.num_rows)]
        many = table.take(np.tile(np.arange(table.num_rows), times))
        pq.write_table(many.set_column(many.schema.get_field_index("row_id"), "row_id", [ids]), tmp_path / "many.parquet")
        sizes.append(len(dataset_page(tmp_path / "many.parquet")[0]))
    assert sizes[1] < 1.1 * sizes[0] < 600_000


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": HOSTILE, "family": HOSTILE},
        {"latency_s": None, "power_w": None},
        {"sm_clock_mhz": np.nan, "sm_clock_measured_mhz": np.nan, "power_w": np.nan},
        {"started_unix_s": 1e90, "temperature_c": -1e90, "sm_clock_measured_mhz": 1e90},
        {"flags": ["a flag of another version"], "throttle_reasons": -1},
    ],
)
def test_odd_values_are_shown_as_text_or_left_out(tmp_path, changes):
    text, _ = dataset_page(dataset(tmp_path, [a_row("r0", **changes), a_row("r1", **changes)]))
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "img"}


def test_bad_input_gives_one_line_and_no_page(tmp_path):
    log = write_log(tmp_path, 3)
    damaged, empty, foreign = (tmp_path / name for name in ("damaged.parquet", "empty.parquet", "rejected.parquet"))
    damaged.write_bytes(b"PAR1" + bytes(40))
    pq.write_table(rows_to_table([], METADATA), empty)
    pq.write_table(rows_to_table([a_row()], {**METADATA, "rejected": {"a reason": "many"}}), foreign)
    out = tmp_path / "page.html"
    for path, words in ((damaged, "damaged"), (empty, "no row"), (foreign, "metadata are damaged"), (tmp_path / "none", "no such file")):
        refused(1, words, f"report {path} -o {out}")
        assert not out.exists()
    assert answer(f"report {log} -o {out}") == {"output": str(out), "rows": 3}
    assert "did not finish" in out.read_text()
