"""What a host that is held up makes of a line: bytes that are there are read, however late it comes to look."""

import pytest

from collector.pmd.serial_line import SerialLine


class Held:
    """A port whose bytes all came while the host was held up."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def in_waiting(self) -> int:
        return len(self._content)

    def read(self, count: int) -> bytes:
        found, self._content = self._content[:count], self._content[count:]
        return found


@pytest.fixture
def line() -> SerialLine:
    return SerialLine("port", Held(b"answer"), None)


def test_an_answer_that_is_there_is_read_after_its_time(line: SerialLine) -> None:
    assert line.read_exactly(6, 0.0) == b"answer"
    assert line.read_exactly(6, 0.0) == b""


def test_a_stream_that_is_there_is_read_after_its_time(line: SerialLine) -> None:
    assert line.read_waiting(0.0) == b"answer"
    assert line.read_waiting(0.0) == b""


def test_a_line_is_not_quiet_where_nobody_has_looked(line: SerialLine) -> None:
    assert line.drain(0.0, 60.0) == 6
    assert line.drain(0.0, 60.0) == 0
