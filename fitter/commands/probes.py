"""`fit probes`: which few kernels to measure on a GPU."""

from pathlib import Path

import click

from estimator.command_line import DONE, named_file
from estimator.output_files import output_option
from fitter.commands.lines import say


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Then: collect --campaign probes.toml --out probes.parquet; fit probes.parquet --prior BUNDLE.",
)
@click.argument("bundle_name", metavar="BUNDLE", callback=named_file)
@click.option("--gpu", "gpu_name", required=True, metavar="NAME|FILE.toml", help="The GPU on which the probes will be measured.")
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many kernels.")
@output_option("-o", "--out", metavar="PROBES.toml", help="Write a campaign for `collect --campaign`.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of every random choice.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def probes_command(bundle_name: str, gpu_name: str, count: int, out: Path | None, seed: int, as_json: bool) -> int:
    """The kernels of BUNDLE that tell most about another GPU, the most telling first.

    Measured there they are enough for a fit with --prior BUNDLE.
    """
    from estimator.bundles.files import load_bundle
    from estimator.specifications import load_gpu
    from estimator.whole_file import write_whole
    from estimator.workload import FAMILY_FIELDS
    from fitter.transfer.probe_plan import campaign_text, plan_probes, probe_lines

    bundle, gpu = load_bundle(bundle_name), load_gpu(gpu_name)
    probes = plan_probes(bundle, gpu, count, seed)
    if out is not None:
        write_whole(out, campaign_text(probes, bundle, gpu).encode())
    if as_json:
        kernels = [
            {
                "family": p.family,
                "operator": p.operator,
                "precision": p.precision,
                **dict(zip(FAMILY_FIELDS[p.family], p.shape, strict=True)),
            }
            for p in probes
        ]
        document = {"bundle": bundle.name, "gpu": gpu.name, "campaign": None if out is None else str(out), "probes": kernels}
        say(document)
        return DONE
    written = [] if out is None else [f"campaign written to {out}", f"next: collect --campaign {out} --out probes.parquet"]
    say([*probe_lines(probes), *written])
    return DONE
