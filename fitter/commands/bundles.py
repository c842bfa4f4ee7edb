"""The commands `fit show`, `fit diff`, `fit release` and `fit verify`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from estimator.display.text import document_text, json_text
from estimator.options.command_line import named_file, output_option
from estimator.vocabulary.documents import printable
from fitter.errors import FitterError

bundle_argument: Final = click.argument("bundle_name", metavar="BUNDLE", type=named_file)
seed_option: Final = click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of every random choice."
)
json_option: Final = click.option("--json", "as_json", is_flag=True, help="One JSON document, SI units; errors in percent.")


def say(result: Mapping[str, object] | Sequence[str]) -> None:
    """Write a document as JSON, or lines, to stdout."""
    click.echo(json_text(result) if isinstance(result, Mapping) else "\n".join([*map(printable, result), ""]), nl=False)


def answer(document: Mapping[str, object], as_json: bool) -> None:
    """Write a document to stdout, as JSON or for people."""
    say(document if as_json else document_text(document).splitlines())


@click.command()
@bundle_argument
@click.option(
    "--published", metavar="GENERATION", help="Compare energies of instructions with a published table: maxwell, pascal, volta or turing."
)
@json_option
def show_command(bundle_name: str, published: str | None, as_json: bool) -> None:
    """Show origin, errors and coefficients of a bundle; with --published, compare its instructions with a published table."""
    from estimator.bundle.files import document_of, load_bundle

    bundle = load_bundle(bundle_name)
    if published is not None:
        from fitter.instructions.display import bundle_energies
        from fitter.instructions.published import compared_with_table, table_document

        energies = bundle_energies(bundle)
        if energies is None:
            raise FitterError(f"{bundle.name} has no energies of instructions; measure them with `collect --campaign ptx-levels`")
        answer(table_document(*compared_with_table(energies, published)), as_json)
        return
    from fitter.report.page import LARGE, show_lines

    say({name: value for name, value in document_of(bundle).items() if name not in LARGE} if as_json else show_lines(bundle))


@click.command()
@click.argument("old_name", metavar="OLD", type=named_file)
@click.argument("new_name", metavar="NEW", type=named_file)
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    metavar="FILE",
    help="Compare predictions of this workload; may be repeated. Else the examples.",
)
@json_option
def diff_command(old_name: str, new_name: str, workloads: Sequence[str], as_json: bool) -> None:
    """Show changed coefficients from bundle OLD to NEW in standard deviations, and their effect on predictions of workloads.

    Also shows the version step that the change needs: major, minor or patch.
    """
    from estimator.bundle.files import load_bundle

    old, new = load_bundle(old_name), load_bundle(new_name)
    from fitter.release.versions import differences_document, workload_differences

    answer(differences_document(old, new, workload_differences(old, new, workloads)), as_json)


@click.command()
@bundle_argument
@click.option("--key", required=True, metavar="KEY", help="Public key to trust: a file as minisign writes it.")
@json_option
def verify_command(bundle_name: str, key: str, as_json: bool) -> None:
    """Check offline that BUNDLE is complete, signed with KEY (in BUNDLE.json.minisig) and has the signed name; exit status 1 if not."""
    from estimator.bundle.files import bundle_path, load_bundle
    from fitter.release.signatures import check_name, verify
    from fitter.release.versions import identity

    path = bundle_path(bundle_name)
    signed = verify(path, Path(key))
    bundle = load_bundle(path)
    check_name(path, bundle, signed)
    answer({"bundle": str(path), **identity(bundle), "key": signed.key, "comment": signed.comment}, as_json)


@click.command()
@bundle_argument
@click.option("--version", "version", required=True, metavar="X.Y.Z", help="Semantic version, above the bundle's.")
@output_option(force=False, metavar="FILE", help="Without it NAME-X.Y.Z.json beside BUNDLE, of an installed one here.")
@click.option("--against", metavar="BUNDLE", type=named_file, help="The release before; without it the newest one beside the release.")
@click.option("--note", default="", metavar="TEXT", help="A sentence for the changelog entry.")
@json_option
def release_command(bundle_name: str, version: str, out: Path | None, against: str | None, note: str, as_json: bool) -> None:
    """Give a bundle a version, a new digest and an entry in NAME.changelog.md beside it.

    The version must be a large enough step from the previous release: major if answers change their meaning or are removed, minor
    if they change, patch if only descriptions change.  `fit diff` shows the step.
    """
    from datetime import UTC, datetime

    from estimator.bundle.files import load_bundle
    from fitter.release.versions import file_name, identity, newest_release, release

    bundle = load_bundle(bundle_name)
    name = file_name(bundle.name)
    target = out or Path(bundle_name).parent / f"{name}-{version}.json"
    before = against or newest_release(target.absolute().parent, name)
    previous = None if before is None else load_bundle(before)
    released, log = release(bundle, version, target, previous, note, datetime.now(UTC).strftime("%Y-%m-%d"))
    answer({"bundle": str(target), **identity(released), "changelog": str(log)}, as_json)


@click.command(
    epilog="Then: collect --campaign probes.toml --out probes.parquet; fit probes.parquet --prior BUNDLE.",
)
@bundle_argument
@click.option("--gpu", "gpu_name", required=True, metavar="NAME|FILE.toml", help="The GPU on which the probes will be measured.")
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many kernels.")
@output_option(metavar="PROBES.toml", help="Write a campaign for `collect --campaign`.")
@seed_option
@json_option
def probes_command(bundle_name: str, gpu_name: str, count: int, out: Path | None, seed: int, as_json: bool) -> None:
    """Select the kernels of BUNDLE that are most informative about another GPU, the most informative first.

    Their measurements suffice for a fit with --prior BUNDLE.
    """
    from estimator.bundle.files import load_bundle
    from estimator.vocabulary.specifications import load_gpu
    from estimator.vocabulary.whole_file import write_whole
    from fitter.transfer.probes import campaign_text, plan_probes

    bundle, gpu = load_bundle(bundle_name), load_gpu(gpu_name)
    probes = plan_probes(bundle, gpu, count, seed)
    if out is not None:
        write_whole(out, campaign_text(probes, bundle, gpu).encode())
    names = ("family", "operator", "precision")
    kernels = [{**{name: getattr(one, name) for name in names}, **one.named_shape()} for one in probes]
    answer({"bundle": bundle.name, "gpu": gpu.name, "campaign": None if out is None else str(out), "probes": kernels}, as_json)
