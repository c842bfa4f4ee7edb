"""Simulation of kernels in SimGrid: runs the work that `estimate blocks --form simgrid --json` lists on the platform of `--simgrid`.

It needs only SimGrid's Python package: `apt-get install python3-simgrid` (Debian, Ubuntu), then the system's Python.

    /usr/bin/python3 examples/simgrid/blocks.py                           the published example, the files beside this one
    /usr/bin/python3 examples/simgrid/blocks.py PLATFORM.xml WORK.json    your own kernels

SimGrid writes the energy of every host when it ends.  Before that it writes a line for each grid: SimGrid's result and the expected one.
"""

import ctypes
import ctypes.util
import json
import sys
from pathlib import Path
from typing import Any

try:
    import simgrid
except ImportError:
    sys.exit("the package simgrid is missing for this Python; apt-get install python3-simgrid, then run /usr/bin/python3 with this file")

HERE = Path(__file__).parent


def main() -> None:
    """Run every grid of the work file, one after the other, each on its kernel's host."""
    given = sys.argv[1:] or [str(HERE / "m2075.xml"), str(HERE / "m2075.json")]
    if len(given) != 2:
        sys.exit("usage: blocks.py [PLATFORM.xml WORK.json]")
    platform, work = given
    try:
        rows = json.loads(Path(work).read_text(encoding="utf-8"))
        Path(platform).read_bytes()
    except (OSError, ValueError) as error:
        sys.exit(f"cannot be read: {error}")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "launch" in row for row in rows):
        sys.exit(f"{work}: is no list of work; write it with `estimate blocks KERNEL --blocks N --form simgrid --json`")
    energy_j = consumed_energy()
    engine = simgrid.Engine(["blocks", "--cfg=plugin:host_energy"])
    try:
        engine.load_platform(platform)
    except RuntimeError as error:
        sys.exit(f"{platform}: no platform of SimGrid ({error})")
    if missing := {row["host"] for row in rows} - {host.name for host in engine.all_hosts}:
        sys.exit(f"{platform}: has no host {min(missing)!r}, which {work} needs; write both with one `estimate blocks`")

    def run_all() -> None:
        for row in rows:
            start_s, start_j = simgrid.Engine.clock, energy_j(row["host"])
            started(row["host"], lambda row=row: execute(row)).join()
            time_s, used_j = simgrid.Engine.clock - start_s, energy_j(row["host"]) - start_j
            found, expected = f"{time_s:.9g} s, {used_j:.9g} J", f"{row['latency_s']:.9g} s, {row['energy_j']:.9g} J"
            print(f"{row['host']}, {row['blocks']} blocks: SimGrid {found}; expected {expected}", flush=True)  # noqa: T201

    started(rows[0]["host"], run_all)
    engine.run()


def execute(row: dict[str, Any]) -> None:
    """Execute the work of one grid: the launch, its whole rounds, and the partial round."""
    simgrid.this_actor.get_host().pstate = row["pstate"]
    for amount in (row["launch"], *(row["whole"],) * row["rounds"], row["rest"]):
        if amount > 0.0:
            simgrid.this_actor.execute(amount)


def started(host: str, task: Any) -> Any:
    """An actor on a host.  SimGrid 4 starts it from the host, SimGrid 3 from the class."""
    place = simgrid.Host.by_name(host)
    return place.add_actor("work", task) if hasattr(place, "add_actor") else simgrid.Actor.create("work", place, task)


def consumed_energy() -> Any:
    """A function for the energy that a host has consumed [J], by its name; SimGrid's Python package lacks this function of the plugin."""
    library = ctypes.util.find_library("simgrid")
    if library is None:
        sys.exit("libsimgrid is not installed; apt-get install python3-simgrid")
    native = ctypes.CDLL(library)
    native.sg_host_by_name.restype = ctypes.c_void_p
    native.sg_host_get_consumed_energy.restype = ctypes.c_double
    return lambda host: native.sg_host_get_consumed_energy(ctypes.c_void_p(native.sg_host_by_name(host.encode())))


main()
