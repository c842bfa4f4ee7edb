"""The tables of kernels and the page about them: every word in them means something."""

import tomllib
from dataclasses import fields
from pathlib import Path

from microbench import families
from microbench.families import KERNELS
from microbench.kernel import Expectation, Kernel, Work
from microbench.loads.copies import COPIES


def test_the_page_counts_the_kernels_and_names_the_copies(repository):
    text = (repository / "docs" / "microbenchmarks.md").read_text(encoding="utf-8")
    assert f"{len(KERNELS)} kernels in {len({kernel.family for kernel in KERNELS})} families" in text
    assert all(f"`{load.name}`" in text for load in COPIES)


FIELDS_OF_TABLES = """each let count bytes_each scalars registers shared before body after macros lanes_may_idle share guarded max_threads
fixed templates start operands operations breaker every first last temporaries per_operation"""
KNOWN = {field.name for kind in (Kernel, Work, Expectation) for field in fields(kind)} | set(FIELDS_OF_TABLES.split())


def test_every_field_of_a_table_is_read_and_every_word_for_opcodes_names_an_opcode_or_a_list():
    for file in Path(families.__file__).parent.glob("*.toml"):
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        for entry in (table.get("defaults", {}), *table.get("kernel", ()), *table.get("row", ())):
            assert set(entry) <= KNOWN, file
    expected = [kernel.expectation for kernel in KERNELS]
    words = {word for one in expected for word in (*one.opcodes, *one.companions, *one.uniform)}
    assert not [word for word in words if not word[0].isupper()]  # a name that no list has stays as it is
