"""Bundles into the local store and out of it."""

from pathlib import Path

from estimator.bundles.content import Bundle
from estimator.bundles.files import MAX_FILE_BYTES, bundle_path, load_bundle
from estimator.bundles.store import NAME, SUFFIX, store_fault, store_folder, stored_names, stored_path
from estimator.errors import BundleError
from estimator.regular_files import read_regular
from estimator.resources import resource_names
from estimator.whole_file import write_whole


def keep_bundle(path: Path, *, replace: bool = False) -> Bundle:
    """Copy a bundle's file, checked, into the store under the bundle's name; from then on `load_bundle` knows it by that.

    replace: whether another bundle of that name may give way.  Raises BundleError for a file that is no sound bundle, a name that no file
    can have or that a shipped bundle has, one that is taken, and a folder that cannot be written.
    """
    bundle = load_bundle(path)
    name = bundle.name
    if not NAME.fullmatch(name) or name.endswith(SUFFIX):  # what ends so is a path to all commands
        raise BundleError(f"bundle {path}: its name {name[:40]!r} cannot be that of a file; fit or release it under another --name")
    if name in resource_names("bundles", ".json"):
        raise BundleError(f"bundle {path}: {name!r} comes with the package; fit or release it under another --name")
    if name in stored_names() and not replace and load_bundle(stored_path(name)).digest != bundle.digest:
        raise BundleError(f"the store already holds another bundle {name!r}; --replace it, or remove it first (estimate bundles --remove)")
    fault = store_fault()
    if fault is not None and fault[1]:
        raise BundleError(fault[0])
    try:
        store_folder().mkdir(parents=True, exist_ok=True)
        content = read_regular(bundle_path(path), MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise BundleError(f"{stored_path(name)}: cannot be written ({getattr(error, 'strerror', None) or error})") from error
    write_whole(stored_path(name), content)
    return bundle


def drop_bundle(name: str) -> Path:
    """Remove a bundle from the store; returns where it was.  Raises BundleError for a name that it does not hold."""
    if name not in stored_names():
        held = ", ".join(stored_names()) or "nothing"
        raise BundleError(f"the store {store_folder()} holds no bundle {name!r}; it holds {held}")
    try:
        stored_path(name).unlink()
    except OSError as error:
        raise BundleError(f"{stored_path(name)}: cannot be removed ({error.strerror or error})") from error
    return stored_path(name)
