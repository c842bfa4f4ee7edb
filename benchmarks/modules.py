"""Scaling over GPU modules by counts and a bandwidth bound of the links, beside GPUJoule's figures 6 to 10.

The publication simulates 14 programs whose counts it does not print.  Here 14 **made-up** kernels of one second stand for them: six
compute-bound ones that use 5 to 40 % of a module's DRAM, eight memory-bound ones that use 60 to 95 %, on the published energies of a
Tesla K40 with HBM and 25 W of constant power.  Data are spread evenly over the modules, unless --local-share says otherwise.
Source of `paper`: Arunkumar et al. (HPCA 2019), section V, text of figures 6 to 10.

Usage: python -m benchmarks.modules [--local-share S] [--json]
"""

from collections.abc import Iterator
from dataclasses import replace

import click
import numpy as np

from benchmarks.showing import show
from estimator.counts.activities import CountedKernel, load_energy_table
from estimator.counts.counted_energy import INTEGRATIONS, Integration, counted_energies, scaling
from estimator.counts.energies import Activity
from estimator.counts.modules import Links, Topology, spread_over

DRAM_BYTES_PER_S = 256e9
LANES_PER_S = 16 * 192 * 745e6
CONSTANT_W = 25.0
COUNTS = (2, 4, 8, 16, 32)
USES = {"compute": (0.05, 0.1, 0.15, 0.2, 0.3, 0.4), "memory": (0.6, 0.7, 0.8, 0.85, 0.9, 0.9, 0.95, 0.95)}
RATES = {"compute": 0.5, "memory": 0.15}
EVERY = tuple(USES)
TABLE = load_energy_table("tesla-k40").with_dram(21.1)
BOARD, PACKAGE = INTEGRATIONS["on-board"], INTEGRATIONS["on-package"]


def kernel(use: float, rate: float) -> CountedKernel:
    """A kernel of 1 s that uses these shares of a module's DRAM and arithmetic rate."""
    lines = use * DRAM_BYTES_PER_S / 128
    transactions = {"dram": 4.0 * lines, "l2": 6.0 * lines, "l1": 1.5 * lines}
    work = {"f32.fma": rate * LANES_PER_S}
    return CountedKernel(
        name="", launches=1.0, activity=Activity(instructions=work, issued=0, transactions=transactions, stalls=0, time_s=1.0)
    )


def mean(
    modules: int, bandwidth: float, integration: Integration, share: float | None, *, kinds=EVERY, topology: Topology = "ring"
) -> dict[str, float]:
    """Means over the kernels: `edpse` [%], `speedup`, `energy` relative to one module; `bandwidth` of a module's links in DRAMs."""
    links = Links(bytes_per_s=bandwidth * DRAM_BYTES_PER_S, topology=topology, local_share=share)
    found = []
    for one in (kernel(use, RATES[kind]) for kind in kinds for use in USES[kind]):
        _, alone, _ = counted_energies([one], TABLE, constant_w=CONSTANT_W)
        _, several, _ = counted_energies(
            [spread_over(one, modules, links)], TABLE, constant_w=CONSTANT_W, modules=modules, integration=integration
        )
        found.append(list(scaling(alone, several, modules, 1.0).values()))
    speedup, energy, edpse = np.mean(found, axis=0).tolist()
    return {"edpse": edpse, "speedup": speedup, "energy": energy}


def rows(share: float | None) -> Iterator[dict[str, object]]:
    """Each figure that the text of the publication states, and ours."""
    package = {modules: mean(modules, 1.0, PACKAGE, share) for modules in (1, *COUNTS)}

    def row(figure: str, what: str, ours: float, paper: float | str = "–") -> dict[str, object]:
        return {"figure": figure, "": what, "ours": ours, "paper": paper}

    for modules in COUNTS:
        kinds = "/".join(f"{mean(modules, 1.0, PACKAGE, share, kinds=(kind,))['edpse']:.0f}" for kind in USES)
        named = f"EDPSE [%], {modules} modules (compute/memory {kinds})"
        yield row("fig 6", named, package[modules]["edpse"], {2: 94.0, 32: 36.0}.get(modules, "–"))
    for before, after in ((1, 2), (16, 32)):
        step = {name: package[after][name] / package[before][name] for name in ("speedup", "energy")}
        yield row("fig 7", f"speed-up, {before} to {after} modules", step["speedup"], {2: 1.868, 32: 1.47}[after])
        yield row("fig 7", f"energy, {before} to {after} modules [%]", 100 * (step["energy"] - 1), {2: "–", 32: 15.7}[after])
    narrow, wide = mean(32, 0.5, BOARD, share), mean(32, 2.0, PACKAGE, share)
    yield row("fig 8", "EDPSE, 32 modules, links 4 times as wide, ratio", wide["edpse"] / narrow["edpse"], 3.0)
    for factor in (2, 4):
        dear = mean(32, 0.5, replace(BOARD, link_pj_per_bit=factor * BOARD.link_pj_per_bit), share)
        yield row("V.C", f"EDPSE, {factor} times the energy of a link [points]", dear["edpse"] - narrow["edpse"], "below 1")
    unshared = mean(32, 1.0, replace(PACKAGE, shared_constant=0.0), share)
    for part, energy, points in ((0.5, -22.3, 8.1), (0.25, -10.4, 3.5)):
        shared = mean(32, 1.0, replace(PACKAGE, shared_constant=part), share)
        yield row(
            "V.C", f"energy, {100 * part:.0f} % of constant power shared [%]", 100 * (shared["energy"] / unshared["energy"] - 1), energy
        )
        yield row("V.C", f"EDPSE, {100 * part:.0f} % of constant power shared [points]", shared["edpse"] - unshared["edpse"], points)
    switched = mean(32, 0.5, INTEGRATIONS["switched"], share, topology="switch")
    yield row("fig 9", "EDPSE, 32 modules, switch for ring, ratio", switched["edpse"] / narrow["edpse"], 2.0)
    quick = mean(32, 2.0, BOARD, share)
    yield row("fig 10", "energy, 32 modules, links 4 times as wide [%]", 100 * (quick["energy"] / narrow["energy"] - 1), -27.4)
    yield row("fig 10", "and on a package [%]", 100 * (wide["energy"] / narrow["energy"] - 1), -45.0)
    yield row("fig 10", "speed, 16 modules at 2x over 32 at 1x", package[16]["speedup"] / narrow["speedup"], "above 1")
    yield row("fig 10", "energy, 16 modules at 2x over 32 at 1x", package[16]["energy"] / narrow["energy"], 0.5)


@click.command()
@click.option("--local-share", type=click.FloatRange(0.0, 1.0), default=None, help="Share of traffic that stays local; else 1/N.")
@click.option("--json", "as_json", is_flag=True)
def main(local_share: float | None, as_json: bool) -> None:
    """Print our figures beside the published ones."""
    show(rows(local_share), as_json)


if __name__ == "__main__":
    main()
