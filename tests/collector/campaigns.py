"""Campaigns on the simulated A100 that several tests run, whole or interrupted, and pieces of their files."""

from contextlib import contextmanager
from dataclasses import replace

from collector.bench import open_bench
from collector.campaigns.plan import plan_campaign
from collector.campaigns.running import Campaign, campaign_key, kept_rows
from estimator.vocabulary.resources import resource_folder

SHORT_HEAD = """
description = "a few loads"
warmup_s = 1.0
idle_settle_s = 1.0
idle_window_s = 1.0
kernels_per_block = 8
anchor_every = 0

[measurement]
updates = 6
window_s = 0.6
settle_s = 0.3
idle_s = 1.0
"""
"""Everything but the loads: short rests, no anchors."""

ANCHORED_HEAD = """
description = "a dozen kernels"
warmup_s = 2.0
idle_settle_s = 1.0
idle_window_s = 1.0
kernels_per_block = 4
anchor_every = 6

[measurement]
updates = 8
window_s = 0.8
settle_s = 0.3
idle_s = 1.5

[[anchors]]
family = "elementwise"
operator = "add"
precision = "fp16"
elements = 33554432
reads = 67108864
"""
"""Everything but the kernels: an anchor after every six of them."""

ONE_SOFTMAX = """
[[kernels]]
family = "softmax"
operator = "softmax"
precision = "fp32"
count = 1
[kernels.shape]
rows = 4096
dim = 1024
"""


def softmax_of_many_sizes(count):
    """`count` softmax kernels of random sizes."""
    return f"""
[[kernels]]
family = "softmax"
operator = "softmax"
precision = "fp32"
count = {count}
[kernels.shape]
rows = {{ low = 64, high = 65536 }}
dim = {{ low = 64, high = 4096 }}
"""


BOARD = "sim:a100-pcie-40gb"
CLOCKS = (510.0, 1200.0)


class Distorting:
    """A sensor whose readings are changed on their way; all else is the sensor's own."""

    def __init__(self, sensor, change):
        self._sensor, self._change = sensor, change
        self.name, self.fields, self.read_energy = sensor.name, sensor.fields, sensor.read_energy

    def read(self):
        return tuple(replace(part, power_w=self._change(part)) for part in self._sensor.read())


def campaign_words(folder, sensor, campaign, *, more="", freqs="current"):
    """Words of `collect` for a campaign's text with a sensor's file on the simulated A100; `more` is added to the board's profile."""
    (folder / "few.toml").write_text(campaign)
    board = BOARD
    if more:
        shipped = (resource_folder("simulated-boards") / "a100-pcie-40gb.toml").read_text()
        (folder / "board.toml").write_text(f'name = "a100-pcie-40gb"\n{shipped}\n{more}')
        board = f"sim:{folder / 'board.toml'}"
    return f"--gpu {board} --freqs {freqs} --campaign {folder / 'few.toml'} --sensor {sensor}"


@contextmanager
def planned(spec, clocks=CLOCKS, seed=7, faults=None):
    """An open board with the plan of a campaign on it."""
    with open_bench(BOARD, seed=seed, faults=faults) as bench:
        plan = plan_campaign(spec, clocks, (), seed, bench)
        yield bench, plan, campaign_key(bench, spec, plan, (), seed)


def collected(spec, output, calibration, *, resume=False, **options):
    """A campaign from start to end, or to wherever it is stopped; `options` are those of `planned` and of Campaign."""
    board = {name: options.pop(name) for name in ("clocks", "seed", "faults") if name in options}
    with planned(spec, **board) as (bench, plan, key):
        kept = kept_rows(output, key) if resume else None
        return Campaign(bench, spec, plan, key, output, kept=kept, calibration=calibration, **options).run()


def stop_after(rows):
    """A progress function that is interrupted like a user's Ctrl-C."""

    def report(progress):
        if progress.row is not None and progress.done >= rows:
            raise KeyboardInterrupt

    return report
