"""The command `estimate`: its entry; what it does stands in `estimator.commands.estimate`."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run `estimate` and return its exit status."""
    try:
        from estimator.options.entry import enter

        return enter("estimate", "estimator.commands.estimate", arguments)
    except KeyboardInterrupt:  # before that function could see it
        sys.stderr.write("estimate: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
