"""The command `collect`: its entry; what it does stands in `collector.commands`."""

import sys

from estimator.entry import enter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run `collect` and return its exit status."""
    return enter("collect", "collector.commands.collect", arguments)


if __name__ == "__main__":
    sys.exit(main())
