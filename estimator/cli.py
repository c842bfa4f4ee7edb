"""The command `estimate`: its entry; what it does stands in `estimator.commands.estimate`."""

import sys

from estimator.entry import enter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run `estimate` and return its exit status."""
    return enter("estimate", "estimator.commands.estimate", arguments)


if __name__ == "__main__":
    sys.exit(main())
