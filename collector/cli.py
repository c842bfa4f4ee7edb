"""The entry point of the command `collect`; its commands are in `collector.commands`."""

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run `collect` and return its exit status."""
    try:
        from estimator.cli import enter

        return enter("collect", "collector.commands.collect", arguments)
    except KeyboardInterrupt:  # before that function could catch it
        sys.stderr.write("collect: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
