"""The tables of kernels: every word in them means something."""

import tomllib
from dataclasses import fields
from pathlib import Path

from microbench import families
from microbench.families import KERNELS, templates
from microbench.families.rows import ROWS, opcodes
from microbench.kernel import Expectation, Kernel, Work

FOLDER = Path(families.__file__).parent
KNOWN = {field.name for kind in (Kernel, Work, Expectation) for field in fields(kind)}
OWN = {"each", "let", "count", "bytes_each", "scalars", "registers", "shared", "before", "body", "after", "macros", "lanes_may_idle"}
OWN |= {"share", "guarded", "max_threads", "fixed"}


def test_a_word_for_opcodes_is_an_opcode_or_names_a_list() -> None:
    words = {word for row in ROWS for word in (*row.sass, *row.companions, *row.uniform)}
    words |= {word for one in KERNELS for word in (*one.expectation.opcodes, *one.expectation.companions, *one.expectation.uniform)}
    assert not [word for word in words if not word[0].isupper()]  # a name that no list has stays as it is


def test_lists_of_opcodes_may_hold_lists() -> None:
    assert opcodes("carried")[: len(opcodes("adders"))] == opcodes("adders")
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)


def test_every_field_of_a_written_kernel_is_one_that_is_read() -> None:
    for file in FOLDER.glob("*.toml"):
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        for entry in (table.get("defaults", {}), *table.get("kernel", ())):
            assert set(entry) <= KNOWN | OWN, file
    assert all(f"`{name}`" in (templates.__doc__ or "") for name in ("each", "let", "scalars", "macros", "share", "guarded"))
