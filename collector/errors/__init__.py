"""The collector's error tree.

CollectorError                 a failed action, with its remedy
├── DeviceError                a device is missing, foreign or does not answer
│   ├── DriverError            no driver, or one that cannot be used
│   ├── BoardBusyError         a board on which another process measures now
│   ├── BoardLostError         a board that no longer answers
│   ├── ClockError             a clock that cannot be locked, or not by this user
│   │   ├── ClockListError     a text that names no clocks; wrong usage
│   │   ├── ClockRightError    a clock that this process may not lock
│   │   └── ClockHelperError   the clock helper is missing, or refuses
│   └── RunnerError            a kernel that cannot be prepared or run
├── BoardProfileError          the profile of a simulated board is wrong
├── SensorError                readings from which a sensor cannot be characterised
├── CampaignError              a campaign file or its arguments cannot be used
├── PrivilegedError            the clock helper's settings or surroundings cannot be used
├── DaemonError                the daemon's settings, state or orders cannot be used
├── ProgramError               a command that cannot be started
└── DatasetError               a dataset is missing, damaged or foreign

A message is one line: the fault, the value, its limit and the remedy.  The command prints it on stderr and exits with 1.
"""


class CollectorError(Exception):
    """An action failed; the message is one line and complete."""


class DeviceError(CollectorError):
    """A device is missing, foreign or does not answer."""


class DriverError(DeviceError):
    """No driver, or one that cannot be used."""


class BoardBusyError(DeviceError):
    """A board on which another process measures now."""


class BoardLostError(DeviceError):
    """A board that no longer answers."""


class ClockError(DeviceError):
    """A clock that cannot be locked, or not by this user."""


class ClockListError(ClockError):
    """A text that names no clocks: wrong usage."""


class ClockRightError(ClockError):
    """A clock that this process has no right to lock."""


class ClockHelperError(ClockError):
    """The clock helper is missing or refuses; `code` names the reason, `remedy` the remedy, both short."""

    def __init__(self, message: str, *, code: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.seen = message
        self.code = code
        self.remedy = remedy


class RunnerError(DeviceError):
    """A kernel that cannot be prepared or run."""


class BoardProfileError(CollectorError):
    """The profile of a simulated board is wrong."""


class SensorError(CollectorError):
    """Readings from which a sensor cannot be characterised."""


class CampaignError(CollectorError):
    """A campaign file or its arguments cannot be used."""


class DatasetError(CollectorError):
    """A dataset is missing, damaged or foreign."""


class PrivilegedError(CollectorError):
    """The clock helper's settings, or its surroundings, cannot be used."""


class DaemonError(CollectorError):
    """The daemon cannot use its settings, its state folder or an order."""


class ProgramError(CollectorError):
    """A command that cannot be started; `exit_status` is the exit status of a shell in this case."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status
