"""Run by the system's Python, which has SimGrid: executes amounts of work on one host of a platform and prints time and energy.

Arguments: platform file, libsimgrid, host, p-state, amounts (JSON).
"""

import ctypes
import json
import sys

import simgrid


def main() -> None:
    platform, library, host, pstate, amounts = sys.argv[1:6]
    found = {}
    native = ctypes.CDLL(library)
    native.sg_host_by_name.restype = ctypes.c_void_p
    native.sg_host_get_consumed_energy.restype = ctypes.c_double

    def work() -> None:
        place = ctypes.c_void_p(native.sg_host_by_name(host.encode()))
        native.sg_host_set_pstate(place, int(pstate))
        for amount in json.loads(amounts):
            simgrid.this_actor.execute(amount)
        found["latency_s"] = simgrid.Engine.clock
        found["energy_j"] = native.sg_host_get_consumed_energy(place)

    engine = simgrid.Engine(["wattprint", "--cfg=plugin:host_energy", "--log=root.thres:critical"])
    engine.load_platform(platform)
    place = simgrid.Host.by_name(host)
    if hasattr(place, "add_actor"):
        place.add_actor("work", work)
    else:
        simgrid.Actor.create("work", place, work)
    engine.run()
    print(json.dumps(found))


main()
