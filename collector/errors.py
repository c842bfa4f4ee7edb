"""The collector's error tree.

CollectorError                 what could not be done, with its remedy
├── DeviceError                a device is missing, foreign or does not answer
│   ├── DriverError            no driver, or one that cannot be used
│   ├── BoardLostError         a board that answered and does not any more
│   ├── ClockError             a clock that cannot be locked, or not by this user
│   │   └── ClockListError     a text that names no clocks; wrong usage
│   └── RunnerError            a kernel that cannot be prepared or run
├── BoardProfileError          the profile of a simulated board is wrong
├── SensorError                readings from which a sensor cannot be characterised
├── CampaignError              a campaign file or its arguments cannot be used
├── ProgramError               a command that cannot be started
└── DatasetError               a dataset is missing, damaged or foreign

A message says what, which value, what the limit is and what to do.  The command prints it as one line
on stderr and exits with 1.
"""


class CollectorError(Exception):
    """Something could not be done; the message is one line and complete."""


class DeviceError(CollectorError):
    """A device is missing, foreign or does not answer."""


class DriverError(DeviceError):
    """No driver, or one that cannot be used."""


class BoardLostError(DeviceError):
    """A board that answered and does not any more."""


class ClockError(DeviceError):
    """A clock that cannot be locked, or not by this user."""


class ClockListError(ClockError):
    """A text that names no clocks: wrong usage."""


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


class ProgramError(CollectorError):
    """A command that cannot be started; `exit_status` is what a shell would give."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status
