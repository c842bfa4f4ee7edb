"""Draw the pictures of the documentation: a chart, the pages of a dataset and of a fit, the page with sliders.

Usage: python scripts/pictures.py DATASET.parquet [FOLDER]

The dataset is the demo's (`make demo`), which is simulated; the picture states it.  Chromium is needed (`make pictures` installs it).
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

WORKLOAD: Final = "examples/gpt2-prefill.json"
BUNDLE: Final = "a100-pcie-40gb-eager"
BROWSER: Final = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
QUIET: Final = ["--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
"""Options that stop the browser's requests to its vendor's hosts, which block if the hosts cannot be reached."""


def program(name: str, *arguments: str) -> list[str]:
    """A command of this environment."""
    return [str(Path(sys.executable).with_name(name)), *arguments]


def run(command: list[str]) -> None:
    """Run a command; status 3 means done with a warning."""
    if subprocess.run(command).returncode not in (0, 3):
        sys.exit(f"failed: {' '.join(command)}")


def photograph(address: str, picture: Path, width: int, height: int) -> None:
    """Write a PNG of a page's upper part, `width` × `height` pixels."""
    with tempfile.TemporaryDirectory() as profile:
        options = [
            f"--user-data-dir={profile}",
            "--virtual-time-budget=5000",
            f"--window-size={width},{height}",
            f"--screenshot={picture.resolve()}",
            address,
        ]
        subprocess.run(BROWSER + QUIET + options, check=True, capture_output=True, timeout=120)


def main() -> None:
    """Write sweep.svg, dataset.png, report.png and page.png."""
    dataset, folder = sys.argv[1], Path(*sys.argv[2:3] or ["docs/pictures"])
    folder.mkdir(parents=True, exist_ok=True)
    sweep = program("estimate", "sweep", WORKLOAD, "--bundle", BUNDLE, "--freqs", "510:1410:30", "--force", "-q")
    run([*sweep, "-o", str(folder / "sweep.svg")])
    with tempfile.TemporaryDirectory() as work:
        shown, report = Path(work, "dataset.html"), Path(work, "report.html")
        run(program("collect", "report", dataset, "-o", str(shown)))
        photograph(shown.as_uri(), folder / "dataset.png", 1200, 1000)
        run(program("fit", dataset, "-o", f"{work}/bundle.json", "--report", str(report), "--seed", "1"))
        photograph(report.as_uri(), folder / "report.png", 1200, 1000)
    with subprocess.Popen(
        program("estimate", "serve", WORKLOAD, "--bundle", BUNDLE, "--port", "0"), stdout=subprocess.PIPE, text=True
    ) as page:
        try:
            assert page.stdout is not None
            photograph(page.stdout.readline().strip(), folder / "page.png", 1200, 800)
        finally:
            page.terminate()
    sys.stdout.write(f"written to {folder}\n")


if __name__ == "__main__":
    main()
