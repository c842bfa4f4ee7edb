"""How fast a PMD's bytes are decoded, and whether a stream is read without loss.

    python benchmarks/bench_pmd.py [--megabytes N] [--stream-s S] [--json]

Speed says little about another machine, so it stands beside the same work in a plain Python loop and beside a copy of the
same bytes.  `--stream-s 60` also reads an emulated meter of 921600 baud through a pseudo-terminal for so long.
"""

import json
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import click
import numpy as np

from collector.pmd.decoder import PacketDecoder
from collector.pmd.packets import (
    AMPERE_PER_LSB,
    HIGHEST_LIVE_VOLTAGE,
    LONGEST_STEP_TICKS,
    LOWEST_LIVE_VOLTAGE,
    PACKET_BYTES,
    SHORTEST_STEP_TICKS,
    STAMP_TURN,
    VOLT_PER_LSB,
    encode_packets,
    rail_amperes,
    rail_volts,
    step_range,
)
from collector.pmd.protocol import STREAM_BAUD
from collector.pmd.sensor import open_pmd

TARGET_MB_PER_S = 50.0
PIECE_BYTES = 1 << 18
LOOP_SHARE = 20  # the Python loop gets one in so many bytes
REPEATS = 5
READ_EVERY_S = 0.25
MEGA = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One way through the bytes [MB/s of PMD bytes]."""

    what: str
    mb_per_s: float


def recording(packets: int) -> bytes:
    """A sound stream: plugged rails, currents with noise, intervals as a meter has them."""
    random = np.random.default_rng(0)
    raw = random.integers(0, 400, (packets, 8)).astype(np.int16)
    raw[:, 0::2] = random.integers(1590, 1620, (packets, 4))
    intervals = 602 + random.integers(-1, 2, packets)
    intervals[::11] = 739
    return encode_packets(np.cumsum(intervals).astype(np.int64), raw)


def decode_stream(content: bytes) -> float:
    """Bytes to seconds and watts, as `collect pmd decode` does it; the mean power."""
    decoder = PacketDecoder(step_range(STREAM_BAUD))
    total, count, zero = 0.0, 0, np.zeros(4)
    for at in range(0, len(content), PIECE_BYTES):
        packets = decoder.feed(content[at : at + PIECE_BYTES])
        power_w = (rail_volts(packets.raw) * rail_amperes(packets.raw, zero)).sum(axis=1)
        total, count = total + float(power_w.sum()), count + len(power_w)
    return total / count


def decode_in_a_loop(content: bytes) -> float:
    """The same without resynchronisation, packet by packet; the mean power."""
    unpack = struct.Struct("<H8h").unpack_from
    ticks = last = 0
    total, count = 0.0, 0
    for at in range(0, len(content) - PACKET_BYTES + 1, PACKET_BYTES):
        stamp, *words = unpack(content, at)
        step = (stamp - last) % STAMP_TURN
        sound = not count or SHORTEST_STEP_TICKS <= step <= LONGEST_STEP_TICKS
        sound = sound and not any(word & 0xF for word in words)
        values = [word >> 4 for word in words]
        sound = sound and all(LOWEST_LIVE_VOLTAGE <= volt <= HIGHEST_LIVE_VOLTAGE for volt in values[0::2])
        if sound:
            ticks, last = ticks + step, stamp
            total += sum(v * VOLT_PER_LSB * i * AMPERE_PER_LSB for v, i in zip(values[0::2], values[1::2], strict=True))
            count += 1
    return total / count


def median_speed(work: Callable[[bytes], object], content: bytes, repeats: int) -> float:
    """Median speed of a call in processor time [MB/s], which a busy machine changes less than the clock on the wall."""
    durations = []
    for _ in range(repeats):
        start = time.process_time()
        work(content)
        durations.append(time.process_time() - start)
    return len(content) / MEGA / statistics.median(durations)


def speeds(megabytes: float) -> list[Speed]:
    """All three ways."""
    content = recording(int(megabytes * MEGA) // PACKET_BYTES)
    part = content[: len(content) // LOOP_SHARE // PACKET_BYTES * PACKET_BYTES]
    if abs(decode_stream(part) - decode_in_a_loop(part)) > 1e-2:
        raise click.ClickException("the two decoders disagree")
    return [
        Speed(what="decode to watts", mb_per_s=median_speed(decode_stream, content, REPEATS)),
        Speed(what="plain Python loop", mb_per_s=median_speed(decode_in_a_loop, part, 1)),
        Speed(what="copy of the bytes", mb_per_s=median_speed(bytearray, content, REPEATS)),
    ]


def streamed(seconds: float) -> dict[str, float]:
    """What is read of an emulated meter (simulated) in so many seconds."""
    command = [sys.executable, "-m", "collector.cli", "pmd", "emulate", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as emulator:
        assert emulator.stdout is not None
        lines = [emulator.stdout.readline()]
        while lines[-1] != "}\n":
            lines.append(emulator.stdout.readline())
        samples, gaps_s, busy_s = 0, [0.0], time.process_time()
        with open_pmd(json.loads("".join(lines))["port"]) as sensor:
            end = time.monotonic() + seconds
            last_ns = 0
            while time.monotonic() < end:
                time.sleep(READ_EVERY_S)
                host_ns = sensor.read()[0].host_ns
                if len(host_ns):
                    gaps_s.append(float(np.diff(host_ns, prepend=last_ns or host_ns[0]).max()) * 1e-9)
                    samples, last_ns = samples + len(host_ns), int(host_ns[-1])
            busy_s = time.process_time() - busy_s
            tally = sensor.tally()
        emulator.terminate()
    return {
        "seconds": seconds,
        "samples": samples,
        "breaks": tally.breaks,
        "discarded_bytes": tally.discarded_bytes,
        "longest_step_s": max(gaps_s),
        "processor_share": busy_s / seconds,
    }


@click.command()
@click.option("--megabytes", type=click.FloatRange(1.0, 10_000.0), default=60.0, show_default=True, help="Bytes to decode.")
@click.option(
    "--stream-s", type=click.FloatRange(0.0, 86_400.0), default=0.0, show_default=True, help="Read an emulated meter for so long."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def main(megabytes: float, stream_s: float, as_json: bool) -> None:
    """Time the decoder of a PMD-USB."""
    rows = speeds(megabytes)
    stream = streamed(stream_s) if stream_s else None
    if as_json:
        click.echo(json.dumps({"speeds": [asdict(row) for row in rows], "target_mb_per_s": TARGET_MB_PER_S, "stream": stream}, indent=2))
        return
    for row in rows:
        click.echo(f"{row.what:20s}{row.mb_per_s:10.1f} MB/s {rows[0].mb_per_s / row.mb_per_s:8.3f} × (decode over this)")
    click.echo(f"target {TARGET_MB_PER_S:.0f} MB/s")
    if stream:
        click.echo("emulated meter (simulated), " + ", ".join(f"{name} {value:g}" for name, value in stream.items()))


if __name__ == "__main__":
    main()
