"""The command `fit`: its entry; what it does stands in `fitter.commands.fit`."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What tells linear algebra how many threads to start.  A fit solves thousands of systems of a few to 400 unknowns: several threads spend
their time waiting for each other (400 products on two busy cores: 30 s of processor time, 4.7 s with one)."""


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run `fit` and return its exit status.  Linear algebra has one thread, but where the environment says otherwise."""
    for variable in BLAS_THREADS:
        os.environ.setdefault(variable, "1")  # before numpy is loaded, which looks once
    try:
        from estimator.cli import enter

        return enter("fit", "fitter.commands.fit", arguments)
    except KeyboardInterrupt:  # before that function could see it
        sys.stderr.write("fit: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
