"""The command `estimate`, and the entry point of every command: an interruption while its modules load ends it like any other.

A command without a stdout does not start.  This file imports almost nothing, so that almost no time passes before the guard.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
"""Exit status of an interrupted command."""

FAILED = 1
"""Exit status of a command that could not do its work."""

EXTRAS = {"cryptography": "sign", "dask": "cluster", "distributed": "cluster", "resvg_py": "plots", "uvicorn": "serve"}
"""The extra that installs a package, if another than that with the command's name."""

OWN = ("estimator", "microbench", "collector", "fitter")
"""Packages that are always installed."""


def enter(name: str, module: str, arguments: "Sequence[str] | None") -> int:
    """Load a module, call its `run(arguments)` and return its exit status; `name` is the command's, for the user.

    arguments: the words after the command's name; None: those of this process.
    """
    if sys.stdout is None:  # nobody could read the answer, and the next opened file would act as stdout
        if sys.stderr is not None:
            sys.stderr.write(f"{name}: stdout is closed; send it to a file or to /dev/null\n")
        return FAILED
    try:
        import gc
        from importlib import import_module

        # Python collects garbage after 700 new containers, hundreds of times while modules and a bundle are loaded, which frees nothing: a
        # twentieth of a short command's time.
        gc.set_threshold(50_000)
        status: int = import_module(module).run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: interrupted\n")
        return INTERRUPTED
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(package, "" if name == "estimate" else name)
        if package in sys.stdlib_module_names:
            told = f"this system's Python has no module {package}; use Linux"
        elif not extra or package in OWN:
            raise
        else:
            told = f"the package {package} is not installed; pip install 'wattprint[{extra}]', in a clone pip install '.[{extra}]'"
        sys.stderr.write(f"{name}: {told}\n")
        return FAILED
    return status


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run `estimate` and return its exit status."""
    return enter("estimate", "estimator.commands.estimate", arguments)


if __name__ == "__main__":
    sys.exit(main())
