"""Real examples of every kind of file that the product reads, and the command that reads each."""

import gzip
import io
import json
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.csv import read_csv

from collector.bench import open_bench
from collector.commands.collect import run as collect
from collector.daemon.jobs import Job
from collector.daemon.store import open_store
from collector.dataset.reader import log_path, read_kernel_dataset, read_log
from collector.errors import CollectorError
from collector.privileged.settings import read_settings as read_helper_settings
from collector.recordings.run import read_run
from collector.replay.recording import recorded_bench
from estimator import EstimatorError
from estimator.bundle.files import digest_of
from estimator.commands.estimate import run as estimate
from estimator.counts.activities import load_energy_table, read_activities
from estimator.tracing.models import load_model_config
from fitter.commands.fit import run as fit
from fitter.errors import FitterError
from fitter.rows.selection import read_selection
from tests.collector.dataset_rows import LINEAR, a_row, write_kernel_dataset, write_log
from tests.collector.pmd.streams import stream

ROOT = Path(__file__).parents[2]
WORKLOAD = ROOT / "examples" / "llama-8b-decode.json"
BUNDLE = ROOT / "bundles" / "a10-eager.json"
REFUSALS = (EstimatorError, FitterError, CollectorError)


@dataclass(frozen=True)
class Example:
    """A file's content and ending, and what reads it: `run` gives an exit status.

    `changed` makes a changed content of files that hold their own digest, or that are packed; `binary` ones are changed by bytes alone.
    """

    content: bytes
    suffix: str
    run: Callable[[Path], int]
    changed: Callable[..., bytes] | None = None
    binary: bool = False


def called(read):
    """A reader that no command runs alone, as one that answers with an exit status."""

    def run(path):
        try:
            read(path)
        except REFUSALS as error:
            print(error, file=sys.stderr)
            return 1
        return 0

    return run


def bundle(_):
    def changed(chance, value, __):
        document = value(json.loads(BUNDLE.read_bytes()), chance)
        document.pop("digest", None)
        try:
            document["digest"] = digest_of(document)
        except EstimatorError:  # a number that JSON cannot hold
            document["digest"] = "sha256:0"
        return json.dumps(document).encode()

    run = lambda path: estimate([str(WORKLOAD), "--bundle", str(path), "--freqs", "885,1695", "--json"])  # noqa: E731
    return Example(BUNDLE.read_bytes(), ".json", run, changed=changed)


def plain(content, suffix, run):
    """A maker of an example that needs no other file."""
    return lambda _: Example(content.encode() if isinstance(content, str) else content, suffix, run)


def shipped(name, run):
    """A maker of an example that is a file of the repository."""
    return plain((ROOT / name).read_bytes(), Path(name).suffix, run)


selecting = called(lambda path: read_selection([path]))
counting = called(lambda path: read_activities(path, "sass"))

PAIRS = """[
[{"batch": 1, "dimM": 1024, "dimN": 2048, "dimK": 1024, "precM": "bf16", "precA": "bf16", "useTensorCore": true},
 ["gemm", "tc", "bf16_bf16"]],
[{"batch": 2048, "dim": 1024, "prec": "bf16"}, ["layernorm", "bf16"]],
[{"batch": 1, "dimM": 1024, "dimN": 2048, "dimK": 1024, "precM": "bf16", "precA": "bf16", "useTensorCore": true},
 ["gemm", "tc", "bf16_bf16"]]
]"""
COUNTS = """{"format": "wattprint-activity", "format_version": 1, "kernels": [
{"name": "a", "launches": 2, "time_s": 1e-3, "issued": 1e6, "opcodes": {"FFMA": 3e7}, "transactions": {"dram": 1e5}}
]}"""
PROFILE = """"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"
"0","k","(8, 1, 1)","smsp__inst_issued.sum","inst","1,000"
"0","k","(8, 1, 1)","smsp__warps_active.sum","inst","1,000"
"0","k","(8, 1, 1)","gpu__time_duration.sum","usecond","12.5"
"""
MODEL = '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 12}'
KEY = "untrusted comment: minisign public key 0\nRWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\n"
GPU_WORDS = [str(WORKLOAD), "--bundle", "a10-eager", "--freqs", "all", "--gpu-spec"]


CAMPAIGN = """
warmup_s = 0.5
idle_window_s = 1.0
anchor_every = 2
[measurement]
updates = 4
window_s = 0.3
settle_s = 0.2
idle_s = 0.5
[[anchors]]
family = "softmax"
operator = "softmax"
precision = "fp32"
rows = 4096
dim = 1024
[[kernels]]
family = "gemm"
operator = "linear"
precision = "bf16"
count = 3
[kernels.shape]
batch = 1
m = { low = 64, high = 8192 }
n = { low = 64, high = 8192, multiple = 8 }
k = 1024
"""


def campaign(folder):
    words = ["--gpu", "sim:a100-pcie-40gb", "--freqs", "900", "--out", str(folder / "never.parquet"), "--dry-run", "--quiet"]
    return Example(CAMPAIGN.encode(), ".toml", lambda path: collect([*words, "--campaign", str(path)]))


def one_run(bench):
    """One kernel, and what sensors and board say of it."""
    prepared = bench.runner.prepare(LINEAR)
    bench.gpu.lock_clock_mhz(bench.gpu.supported_clocks_mhz()[0])
    bench.runner.run(prepared, 1000)
    bench.clock.wait(1.0)
    bench.gpu.state()
    for sensor in bench.sensors:
        sensor.read()
    bench.gpu.unlock_clock()


def on_board(path):
    """A simulated board, on which one kernel runs."""
    with open_bench(f"sim:{path}", seed=1) as bench:
        one_run(bench)


MEASURED = """
"sm_clock_mhz": 900.0, "sm_clock_measured_mhz": 900.0, "temperature_c": 50.0, "power_limit_w": 250.0, "latency_std_s": 1e-7,
"power_std_w": 1.0, "energy_j": 0.02, "power_raw_w": 200.0, "idle_before_w": 40.0, "l2_state": "warm", "split_k": 1,
"kernel_name": "ampere_gemm", "grid_x": 8, "grid_y": 4, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1, "tile_m": 128,
"tile_n": 128, "library": "cublas", "energy_counter_j": 0.02, "window_s": 0.5"""


def dataset_rows():
    extra = json.loads(f"{{{MEASURED}}}")
    return [a_row(f"r{i}", **extra, latency_s=1e-4 * (1 + i / 9), started_unix_s=1.7e9 + i) for i in range(12)]


def changed_table(table, chance, value):
    """Parquet of a table with foreign cells, columns or metadata."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        if not table.num_columns:
            break
        place = chance.randrange(table.num_columns)
        name, change = table.column_names[place], chance.randrange(10)
        column = table.column(place)
        wild = [1e308, -1e308, 5e-324, 0.0, -1.0, float("nan"), float("inf"), 1e99, 1e30, 1e-30]
        if pa.types.is_integer(column.type):
            wild = [0, -1, 1 << 62, -(1 << 63), 10**15, 1]
        if change < 6 and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            cells = [chance.choice(wild) if chance.random() < 0.4 else cell for cell in column.to_pylist()]
            table = table.set_column(place, name, pa.array(cells, column.type))
        elif change == 6:
            table = table.append_column(name, column)
        elif change == 7:
            table = table.remove_column(place)
        elif change == 8:
            foreign = [["x" * 5000, None, "\x1b[31m"], [[1.0]], [{"a": 1}], [b"\xff\xfe", b""], [True, None], [1e308], ["1e308", ""]]
            cells = chance.choice(foreign)
            table = table.set_column(place, name, pa.array([cells[i % len(cells)] for i in range(table.num_rows)]))
        else:
            text = (table.schema.metadata or {}).get(b"wattprint")
            if text:
                document = value(json.loads(text), chance)
                table = table.replace_schema_metadata({b"wattprint": json.dumps(document).encode()})
    return packed(table)


def packed(table):
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def parquet_of(table, run):
    changed = lambda chance, value, _: changed_table(table, chance, value)  # noqa: E731
    return Example(packed(table), ".parquet", run, binary=True, changed=changed)


BOARD_METADATA = """{
"gpu": {"name": "a100-pcie-40gb", "uuid": "GPU-0"}, "complete": true, "drift": {"idle": 0.01},
"idle": [{"sm_clock_mhz": 900.0, "power_w": 40.0}], "sensor": {"gpu_uuid": "GPU-0", "field": "instant", "averaging": "boxcar"}
}"""


def dataset(folder):
    path = folder / "whole.parquet"
    path.unlink(missing_ok=True)
    write_kernel_dataset(dataset_rows(), json.loads(BOARD_METADATA), path)
    return parquet_of(pq.read_table(path), called(lambda path: (read_kernel_dataset(path), read_selection([path]))))


def campaign_log(folder):
    log = log_path(folder / "dataset.parquet")
    if not log.exists():
        write_log(folder, 6)
    return Example(log.read_bytes(), ".log.jsonl", called(read_log))


KERNELS = "operator,family,gpu,precision,batch,m,n,k,latency_s,power_w,power_limit_w,sm_clock_mhz,kernel_name,grid_x,block_x\n" + "".join(
    f"linear,gemm,a100-pcie-40gb,bf16,1,{size},1024,512,{7.3e-6 * size / 512},180.5,250,1410,ampere_gemm,{size // 64},128\n"
    for size in (512, 1024, 2048, 4096)
)


def kernel_parquet(_):
    return parquet_of(read_csv(io.BytesIO(KERNELS.encode())), selecting)


RUNS = "workload,gpu,precision,sm_clock_mhz,sm_clock_measured_mhz,iterations,latency_s,energy_j,temperature_c\n" + "".join(
    f"{WORKLOAD},a10,bf16,{clock},{clock},{300 - i},{0.03 + 0.001 * i},{3.1 + i / 9},60\n" for i, clock in enumerate((885, 1290, 1695) * 2)
)


TIMES = np.arange(300) * 0.02
POWERS = 60.0 + 90.0 * (TIMES % 1.0 > 0.4)
READINGS = "t_s,power_w\n" + "".join(f"{t:.3f},{p:.2f}\n" for t, p in zip(TIMES, POWERS, strict=True))
SMI = "timestamp, index, power.draw [W], power.draw.instant [W]\n" + "".join(
    f"2023/07/14 10:12:{46 + i // 50:02d}.{20 * (i % 50):03d}, 0, {p:.2f} W, {p + 1:.2f} W\n" for i, p in enumerate(POWERS)
)
LOAD = "t_s,level\n" + "".join(f"{i + 0.4},1\n{i + 1.0},0\n" for i in range(5))
SENSOR = """{
"gpu_uuid": "GPU-1", "driver": "1", "sensor": "nvml", "field": "instant", "averaging": "boxcar", "n_updates": 90,
"window_s": 0.1, "window_std_s": 1e-3, "gain": 1.0, "gain_std": 0.01, "offset_w": 0.0, "offset_std_w": 0.5,
"update_period_s": 0.1, "update_period_std_s": 1e-4, "delay_s": 0.01, "delay_std_s": 0.001, "transient": "instant",
"rise_time_s": 0.1, "sampled_fraction": 1.0, "residual_w": 0.3, "notes": {"gain": "from a meter"}
}"""


def beside(folder, name, content):
    path = folder / name
    path.write_text(content)
    return path


def correcting(folder):
    sensor = beside(folder, "sensor.json", SENSOR)
    return lambda path: collect(["correct", "--readings", str(path), "--sensor", str(sensor)])


def load(folder):
    power = beside(folder, "readings.csv", READINGS)
    return Example(LOAD.encode(), ".csv", called(lambda path: read_run(power, path)))


def sensor(folder):
    words = ["correct", "--readings", str(beside(folder, "readings.csv", READINGS)), "--sensor"]
    return Example(SENSOR.encode(), ".json", lambda path: collect([*words, str(path)]))


def reference(folder):
    power, edges = beside(folder, "readings.csv", READINGS), beside(folder, "load.csv", LOAD)
    return Example(READINGS.encode(), ".csv", called(lambda path: read_run(power, edges, path)))


def meter(_):
    packets = stream(400)[0]
    return Example(packets, ".pmd", lambda path: collect(["pmd", "decode", str(path)]), binary=True)


def stamps(folder):
    """A meter's stamps beside its bytes."""
    packets = stream(400)[0]
    lines = "".join(f"{len(packets) // 40 * i},{2_000_000 * i}\n" for i in range(1, 40))

    def run(path):
        (folder / "meter.pmd").write_bytes(packets)
        path.replace(folder / "meter.pmd.stamps.csv")
        return collect(["pmd", "decode", str(folder / "meter.pmd")])

    header = '# {"model": "PMD-USB", "firmware": 6, "baud": 921600, "started_host_ns": 0, "started_unix_s": 1.7e9, "format": 1}'
    return Example(f"{header}\nbytes,host_ns\n{lines}".encode(), ".csv", run)


def played(path):
    """A recorded run, played back."""
    with open_bench(f"replay:{path}") as bench:
        one_run(bench)


def recording(folder):
    """A recorded run, whose lines are changed before it is packed again."""
    whole = folder / "recorded.gz"
    with open_bench("sim:rtx-3090", seed=1) as bench, recorded_bench(bench, whole) as recorded:
        one_run(recorded)
    lines = gzip.decompress(whole.read_bytes()).decode()
    changed = lambda chance, _, text: gzip.compress(text(lines, chance), 1)  # noqa: E731
    return Example(whole.read_bytes(), ".gz", called(played), changed=changed, binary=True)


def daemon(folder):
    """A daemon's settings: what a command that speaks to one makes of them."""
    content = (ROOT / "packaging" / "daemon.toml").read_text().replace("/var/lib/wattprint", str(folder / "state"))
    return Example(content.encode(), ".toml", lambda path: collect(["status", "--config", str(path), "--json"]))


def queue(folder):
    """A queue of which cells are changed by hand, or bytes by a bad disk."""
    config = beside(folder, "queue.toml", f'gpus = ["sim:rtx-3090"]\nstate_folder = "{folder}/jobs"\n')
    (folder / "jobs").mkdir(mode=0o700, exist_ok=True)
    for left in (folder / "jobs").iterdir():
        left.unlink()
    job = Job(board="sim:rtx-3090", campaign="quick", title="quick", arguments=("--seed", "1"), out="", budget_s=60.0)
    with open_store(folder / "jobs") as store:
        for number in range(3):
            store.submit(replace(job, out=f"/tmp/{number}.parquet"))
    file = next(path for path in (folder / "jobs").iterdir() if path.suffix not in ("-wal", "-shm") and path.stat().st_size > 4096)

    def changed(chance, _, __):
        copy = folder / "copy.sqlite"
        copy.write_bytes(file.read_bytes())
        connection = sqlite3.connect(copy)
        table = chance.choice([row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")])
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        wild = [None, "x", b"\xff", -1, 0, 1e308, float("inf"), 1 << 62, "", "[]", "9" * 5000, "\x1b[31m"]
        try:
            connection.execute(f"UPDATE {table} SET {chance.choice(columns)} = ?", (chance.choice(wild),))
            connection.commit()
        except sqlite3.Error:
            pass
        connection.close()
        return copy.read_bytes()

    def run(path):
        file.write_bytes(path.read_bytes())
        return collect(["status", "--config", str(config), "--json"])

    return Example(file.read_bytes(), ".sqlite", run, changed=changed, binary=True)


HELPER = (ROOT / "packaging" / "clocks.toml").read_text()


EXAMPLES = {
    **{
        make.__name__: make
        for make in (
            bundle, campaign, dataset, campaign_log, kernel_parquet, load, sensor, reference, meter,
            stamps,
            recording, daemon, queue,
        )
    },
    "readings": lambda folder: Example(READINGS.encode(), ".csv", correcting(folder)),
    "smi": lambda folder: Example(SMI.encode(), ".csv", correcting(folder)),
    "workload": shipped("examples/gpt2-prefill.json", lambda path: estimate([str(path), "--bundle", "a10-eager", "--freqs", "885,1695"])),
    "pairs": plain(PAIRS, ".json", lambda path: estimate([str(path), "--bundle", "a10-eager"])),
    "gpu": shipped("configs/gpus/a10.toml", lambda path: estimate([*GPU_WORDS, str(path)])),
    "energies": shipped("configs/energies/tesla-k40.toml", called(lambda path: load_energy_table(str(path)).with_dram(21.1))),
    "counts": plain(COUNTS, ".json", counting),
    "profile": plain(PROFILE, ".csv", counting),
    "model": plain(MODEL, ".json", called(lambda path: load_model_config(str(path)))),
    "board": shipped("configs/simulated-boards/a100-pcie-40gb.toml", called(on_board)),
    "kernel_table": plain(KERNELS, ".csv", selecting),
    "runs": plain(RUNS, ".csv", selecting),
    "helper": plain(HELPER.replace("wattprint-clocks", "root"), ".toml", called(read_helper_settings)),
    "key": plain(KEY, ".pub", lambda path: fit(["verify", str(BUNDLE), "--key", str(path)])),
}  # fmt: skip
