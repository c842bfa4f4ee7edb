"""Boards named by several words, a board's name in the queue, and the right to measure on one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from collector.devices.board_claim import claimed_board
from collector.devices.nvml import board_addresses, choose_board
from collector.devices.nvml_library import open_nvml
from collector.errors import BoardLostError, DeviceError, DriverError
from collector.simulated.profile import board_names, load_board
from estimator.vocabulary.specifications import names_file
from estimator.vocabulary.values import frozen

ALL: Final = "all"
SIMULATED: Final = "sim:"
REPLAYED: Final = "replay:"
"""Prefixes of words for `--gpu`."""


@frozen
class BoardName:
    """A board: its key, which `--gpu` takes (UUID, or sim:PROFILE), and its product name."""

    key: str
    name: str

    @property
    def simulated(self) -> bool:
        """Whether it is a simulated board; any number of these may run at once."""
        return self.key.startswith(SIMULATED)


def several(text: str) -> bool:
    """Whether a `--gpu` text names several boards."""
    return "," in text or text.strip().lower() == ALL


def named_boards(words: Sequence[str]) -> tuple[BoardName, ...]:
    """The boards that words name, `all` for every real one.

    Raises DriverError for a real board without a driver, DeviceError for an unknown word,
    for a recording, and for a duplicate board; BoardProfileError for a profile that cannot be used.
    """
    boards: list[BoardName] = []
    for word in words:
        if word.lower() == ALL:
            boards += _real_boards()
        else:
            boards.append(_board(word))
    for number, board in enumerate(boards):
        for other in boards[:number]:
            if other.key == board.key:
                raise DeviceError(f"board {board.key} is named twice; name each board once")
    return tuple(boards)


def board_words(text: str) -> tuple[str, ...]:
    """The words in a list such as "0,1".  Raises DeviceError for an empty entry."""
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise DeviceError(f"--gpu {text!r} names no board at one place; give boards with a comma between them, or all")
    return words


@contextmanager
def sole_use(word: str) -> Iterator[None]:
    """The right to measure on the board that a word names (as `--gpu` takes it), held within the block.

    Every command that runs on a board, or reads its power for a result, takes it before it opens the board, once a process: it is not
    re-entrant.  Simulated boards and recordings are free for all.  The right ends with the process.  Raises
    BoardBusyError, naming the process, if another one has it, and the errors of `named_boards`.
    """
    if word.strip().startswith((SIMULATED, REPLAYED)):
        yield
        return
    with claimed_board(named_boards((word.strip(),))[0].key):
        yield


def no_gpu(word: str, error: DriverError) -> DriverError:
    """The error for a real board without a driver, which names the simulated boards."""
    return DriverError(f"no GPU {word!r} here: {error}; simulated boards: {', '.join(f'{SIMULATED}{name}' for name in board_names())}")


def _board(word: str) -> BoardName:
    if word.startswith(REPLAYED):
        raise DeviceError(f"{word}: a recording answers only what it was asked, and alone; replay it with `collect --gpu {word}`")
    if word.startswith(SIMULATED):
        profile = word.removeprefix(SIMULATED)
        board = load_board(profile)
        own = Path(profile).absolute() if names_file(profile) else board.name
        return BoardName(key=f"{SIMULATED}{own}", name=board.identity.product_name)
    try:
        with open_nvml() as library:
            boards = board_addresses(library)
            address = boards[choose_board(word, boards)]
    except DriverError as error:
        raise no_gpu(word, error) from error
    return BoardName(key=address.uuid, name=address.name)


def _real_boards() -> list[BoardName]:
    with open_nvml() as library:
        addresses = board_addresses(library)
    if not addresses:
        raise DeviceError("the driver knows no board; name a simulated one with sim:PROFILE")
    for address in addresses:
        if address.trouble:
            raise BoardLostError(f"GPU {address.index}: {address.trouble}; or name the other boards one by one")
    return [BoardName(key=address.uuid, name=address.name) for address in addresses]
