"""Coverage-guided fuzzing of everything that reads foreign bytes: `make fuzz`, or python -m tests.fuzz.targets TARGET [OPTION…].

Each target may refuse its input with a named error and nothing else.  Options are libFuzzer's, such as -max_total_time=60.
"""

import gzip
import io
import json
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import atheris
import pyarrow as pa
import pyarrow.parquet as pq

with atheris.instrument_imports(include=["collector", "estimator", "fitter"]):
    import numpy as np

    from collector.errors import CollectorError
    from collector.pmd.decoder import PacketDecoder
    from collector.pmd.packets import PACKET_BYTES, STREAM_BAUD, step_range
    from collector.recordings.loads import read_load
    from collector.recordings.readings import read_readings
    from collector.recordings.reference import read_reference
    from collector.replay.play import open_recording
    from collector.sensor.calibration import load_calibration
    from estimator.bundles.files import load_bundle
    from estimator.errors import EstimatorError
    from estimator.formats import read_workload
    from estimator.specifications import document_of_gpu, load_gpu

REFUSALS = (CollectorError, EstimatorError)
FOLDER = Path(tempfile.mkdtemp(prefix="wattprint-fuzz-"))


def pmd(data: bytes) -> None:
    """Packets are the same however the stream is cut; no byte is counted twice."""
    whole, cut = (PacketDecoder(step_range(STREAM_BAUD)) for _ in range(2))
    at = data[0] if data else 0
    all_at_once = [*whole.feed(data).end_byte, *whole.finish().end_byte]
    in_pieces = [*cut.feed(data[:at]).end_byte, *cut.feed(data[at:]).end_byte, *cut.finish().end_byte]
    assert all_at_once == in_pieces
    tally = whole.tally()
    assert tally.packets * PACKET_BYTES + tally.discarded_bytes + tally.trailing_bytes == tally.bytes == len(data)


def recorded(read: Callable[[Path], object], suffix: str) -> Callable[[bytes], None]:
    """A reader of files, given its bytes in one."""
    path = FOLDER / f"input{suffix}"

    def target(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read(path)
        except REFUSALS as error:
            if "\n" in str(error):
                raise AssertionError("a refusal is one line") from error

    return target


def replayed(path: Path) -> object:
    """The first answers of a recording."""
    with open_recording(path) as (recording, player):
        for _ in range(4):
            player.call("clock", "now_ns")
        return recording


TARGETS: dict[str, Callable[[bytes], None]] = {
    "pmd": pmd,
    "readings": recorded(read_readings, ".csv"),
    "readings-parquet": recorded(read_readings, ".parquet"),
    "load": recorded(read_load, ".csv"),
    "reference": recorded(read_reference, ".csv"),
    "reference-pmd": recorded(read_reference, ".bin"),
    "sensor": recorded(load_calibration, ".json"),
    "replay": recorded(replayed, ".recording"),
    "bundle": recorded(load_bundle, ".json"),
    "workload": recorded(read_workload, ".json"),
}


def packets(count: int) -> bytes:
    """Packets of a meter at rest, 587 ticks apart."""
    return b"".join(struct.pack("<H8h", 587 * index % 65536, *([3300, 100] * 4)) for index in range(count))


def recording_start() -> bytes:
    """A recording's first lines."""
    header = {"format": "wattprint-recording", "version": 2, "word": "0", "simulated": False, "sensors": []}
    spec = {"gpu_spec": document_of_gpu(load_gpu("a100-pcie-40gb"))}
    lines = [
        {**header, **spec},
        {"device": "clock", "method": "now_ns", "answer": 1},
        {"device": "clock", "method": "now_ns", "answer": {"whole": [1]}},
    ]
    return gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode())


SENSOR = {
    "gpu_uuid": "GPU-1",
    "driver": "1",
    "sensor": "nvml",
    "field": "instant",
    "averaging": "boxcar",
    "n_updates": 9,
    "window_s": 0.1,
    "gain": 1.0,
}
SMI = b"timestamp, power.draw [W], power.draw.instant [W]\n2023/07/14 10:12:46.483, 56.12 W, 56.1 W\n2023/07/14 10:12:46.583, [N/A], 57\n"
CSV = b"t_s,power_w\n0.0,50\n0.02,60.5\n0.04,nan\n0.06,61\n"


def seeds() -> dict[str, list[bytes]]:
    """Inputs that each target takes, to begin from."""
    parquet = io.BytesIO()
    pq.write_table(pa.table({"t_s": [0.0, 0.1], "power_w": [1.0, 2.0]}), parquet)
    root = Path(__file__).parents[2]
    return {
        "pmd": [packets(20), packets(9) + b"x" + packets(12)],
        "readings": [CSV, SMI],
        "readings-parquet": [parquet.getvalue()],
        "load": [b"t_s,level\n0,1\n0.5,0\n1,0.5\n"],
        "reference": [CSV],
        "reference-pmd": [packets(60)],
        "sensor": [json.dumps(SENSOR).encode()],
        "replay": [recording_start()],
        "bundle": [(root / "bundles" / "a10-eager.json").read_bytes()],
        "workload": [path.read_bytes() for path in sorted((root / "examples").glob("*.json"))],
    }


def main() -> None:
    """Fuzz the target that the command line names."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"name a target: {', '.join(TARGETS)}")
    target = TARGETS[sys.argv[1]]

    def one(data: bytes) -> None:
        with np.errstate(all="ignore"), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            target(data)

    corpus = FOLDER / "seeds"
    corpus.mkdir()
    for number, seed in enumerate(seeds()[sys.argv[1]]):
        (corpus / str(number)).write_bytes(seed)
    atheris.Setup([sys.argv[0], str(corpus), *sys.argv[2:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
