"""Entry of the command `fit`; `fitter.commands.fit` implements it."""

import os
import sys

BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables with the number of threads of linear algebra.  A fit solves thousands of systems of a few to 400 unknowns, and
several threads mostly wait for each other (400 products on two busy cores: 30 s of processor time, 4.7 s with one thread)."""


def main(arguments: list[str] | None = None) -> int:
    """Run `fit` and return its exit status.  Linear algebra uses one thread unless the environment sets another number."""
    for variable in BLAS_THREADS:
        os.environ.setdefault(variable, "1")  # before numpy is loaded, which reads it once
    try:
        from estimator.cli import enter

        return enter("fit", "fitter.commands.fit", arguments)
    except KeyboardInterrupt:  # raised before that function runs
        sys.stderr.write("fit: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
