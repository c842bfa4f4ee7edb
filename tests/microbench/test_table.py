"""The table of instructions: every word in it means something."""

from microbench.families.table import ROWS, opcodes


def test_a_word_for_opcodes_is_an_opcode_or_names_a_list() -> None:
    words = {word for row in ROWS for word in (*row.sass, *row.companions, *row.uniform)}
    assert not [word for word in words if word != word.upper()]  # a name that no list has stays as it is


def test_lists_of_opcodes_may_hold_lists() -> None:
    assert opcodes("carried")[: len(opcodes("adders"))] == opcodes("adders")
    assert len({row.name for row in ROWS}) == len(ROWS)
