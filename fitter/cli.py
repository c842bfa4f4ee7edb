"""The command `fit`: its entry; what it does stands in `fitter.commands.fit`."""

import sys

from estimator.entry import enter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run `fit` and return its exit status."""
    return enter("fit", "fitter.commands.fit", arguments)


if __name__ == "__main__":
    sys.exit(main())
