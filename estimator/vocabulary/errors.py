"""The estimator's error tree.

EstimatorError                 what could not be done, with its remedy
├── SpecificationError         a GPU specification is missing, wrong or unknown
├── WorkloadError              a workload file or an operator cannot be used
├── BundleError                a bundle is damaged, foreign or too new
├── CountsError                counts of what a kernel did cannot be read, or energies of it are not known
├── UnwrittenError             a file cannot be written; an OSError too
├── OperatingPointError        a clock, a cap or a setting outside what the GPU can do
└── ArgumentError              an argument of the Python interface is of another kind than it must be; a TypeError too

A message says what, which value, what the limit is and what to do.  The commands print it as one
line on stderr and exit with 1.
"""


class EstimatorError(Exception):
    """Something could not be done; the message is one line and complete."""


class SpecificationError(EstimatorError):
    """A GPU specification is missing, wrong or unknown."""


class WorkloadError(EstimatorError):
    """A workload file or an operator cannot be used."""


class BundleError(EstimatorError):
    """A bundle is damaged, foreign or newer than this program."""


class CountsError(EstimatorError):
    """Counts of what a kernel did cannot be read, or energies of what it did are not known."""


class OperatingPointError(EstimatorError):
    """A clock, a power cap or a setting lies outside what the GPU can do."""


class ArgumentError(EstimatorError, TypeError):
    """An argument of the Python interface is of another kind than it must be."""


class UnwrittenError(EstimatorError, OSError):
    """A file cannot be written."""
