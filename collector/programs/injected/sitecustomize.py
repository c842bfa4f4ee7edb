"""Runs inside a measured Python program, before its own code: CUPTI records every kernel into a file.  Needs nothing of wattprint.

`collect run --kernels` puts this folder on PYTHONPATH and names the folder of the records in WATTPRINT_KERNELS.  A line is
`clock HOST_NS CUPTI_NS`, `kernel START_NS END_NS NAME` in CUPTI's time, or `error TEXT`.
"""

import atexit
import importlib
import os
import sys
import time
from typing import Any


def _record(folder: str) -> None:
    process = os.getpid()
    file = open(os.path.join(folder, f"{process}.txt"), "a", encoding="utf-8", buffering=1 << 16)  # noqa: SIM115 - until the end
    try:
        cupti: Any = importlib.import_module("cupti.cupti")
    except ImportError as error:
        file.write(f"error {sys.executable}: {error}\n")
        file.close()
        os._exit(1)

    def stamp() -> None:
        before = time.monotonic_ns()
        there = cupti.get_timestamp()
        file.write(f"clock {(before + time.monotonic_ns()) // 2} {there}\n")

    def completed(activities: Any) -> None:
        for one in activities:
            if int(one.kind) == kind and os.getpid() == process:
                file.write(f"kernel {int(one.start)} {int(one.end)} {one.name}\n")

    def finish() -> None:
        if os.getpid() == process:  # not in a fork
            cupti.activity_flush_all(1)
            stamp()
            file.close()

    kind = int(cupti.ActivityKind.CONCURRENT_KERNEL)
    try:
        cupti.activity_register_callbacks(lambda: (8 << 20, 0), completed)
        cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
        stamp()
        atexit.register(finish)
    except (cupti.cuptiError, RuntimeError) as error:
        file.write(f"error {sys.executable}: CUPTI refuses: {error}\n")
        file.close()
        os._exit(1)


if _folder := os.environ.get("WATTPRINT_KERNELS", ""):
    _record(_folder)
# A sitecustomize of the program's own runs too.
sys.path[:] = [_place for _place in sys.path if os.path.abspath(_place) != os.path.dirname(os.path.abspath(__file__))]
_ours = sys.modules.pop("sitecustomize", None)
try:
    importlib.import_module("sitecustomize")
except ModuleNotFoundError as _error:
    if _error.name != "sitecustomize":
        raise
    if _ours is not None:
        sys.modules["sitecustomize"] = _ours
