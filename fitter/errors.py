"""The fitter's error tree.

FitterError                    an operation failed; the message names the remedy
├── InputError                 a data set is missing, damaged, foreign or holds nothing that can be used
├── SelectionError             the rows do not fit together (several GPUs, no row of the requested one)
├── CalibrationError           the rows do not determine the coefficients
├── ClusterError               a cluster does not answer, was lost, or runs another version
├── ReleaseError               a bundle cannot be released or compared
└── SignatureError             a signature is missing, damaged or not that of a bundle

A message says what, which value, what the limit is and what to do.  The command prints it as one line
on stderr and exits with 1.
"""


class FitterError(Exception):
    """An operation failed; the message is one complete line."""


class InputError(FitterError):
    """A data set is missing, damaged, foreign or holds nothing that can be used."""


class SelectionError(FitterError):
    """Rows that do not fit together."""


class CalibrationError(FitterError):
    """Rows that do not determine the coefficients."""


class ClusterError(FitterError):
    """A cluster that does not answer, was lost, or runs another version."""


class ReleaseError(FitterError):
    """A bundle that cannot be released or compared."""


class SignatureError(FitterError):
    """A signature is missing, damaged or not that of a bundle."""
