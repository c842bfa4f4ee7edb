"""Mutated inputs of everything that reads files: a command answers or refuses in one line, without traceback, warning or hang.

python -m tests.fuzz.mutate --seed S --count N [--kind KIND …] [--case NUMBER] changes real examples of every kind of file and runs the
commands that read them, in processes with limits of memory and time.  A case follows from seed, kind and number alone: --case runs one
again and shows its traceback.  The exit status is 1 where anything was found.
"""

import argparse
import faulthandler
import io
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from tests.fuzz.examples import EXAMPLES

MOST_BYTES = 1 << 31
"""Data of a process; a fresh one that has imported everything has 300 MB."""
MOST_S = 20
CASES_OF_A_PROCESS = 40
NUMBERS = (
    "0", "-0.0", "-1", "0.5", "1e-308", "5e-324", "1e15", "1e30", "1e99", "1e150", "1.7e308", "-1e300", "1e999", "nan", "-inf", "Infinity",
    "9" * 25, "9" * 5000, "4294967296", "9223372036854775807", "true", "null", '""', "[]", "{}", '"1"', "1_000", "0x10", "1e", "1,2", "",
)  # fmt: skip
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
WORD = re.compile(r"[A-Za-z_][\w.-]*")
BYTES = (
    b"\xff", b"\x00", b"\xc3\x28", b"\xed\xa0\x80", b"\x1b[31m", b"\n", b"\r", b'"', b"\\", b"[" * 3000, b"{", b"}", b"=", b",",
    b"\xef\xbb\xbf",
)  # fmt: skip


def mutated_text(text, chance):
    """A text with a few numbers, words, lines or bytes changed."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        change = chance.randrange(8)
        tokens = list((NUMBER if change < 4 else WORD).finditer(text))
        lines = text.splitlines(keepends=True)
        if change < 4 and tokens:
            token = chance.choice(tokens)
            text = text[: token.start()] + chance.choice(NUMBERS) + text[token.end() :]
        elif change == 4 and tokens:
            token, other = chance.choice(tokens), chance.choice(tokens)
            text = text[: token.start()] + chance.choice((other.group(), "", "x" * 5000, "\u202e")) + text[token.end() :]
        elif change == 5 and lines:
            place = chance.randrange(len(lines))
            line = lines[place]
            often = line * min(200, 1 + 10**6 // (1 + len(line)))  # floods are tests.fuzz.floods'
            lines[place] = chance.choice(("", line * 2, often, chance.choice(lines), line.rstrip()[:-1]))
            text = "".join(lines)
        elif change == 6:
            text = text[: chance.randrange(len(text) + 1)]
        elif lines:
            chance.shuffle(lines)
            text = "".join(lines) if chance.random() < 0.3 else text
    content = text.encode("utf-8", "surrogatepass")
    return mutated_bytes(content, chance) if chance.random() < 0.15 else content


def mutated_bytes(content, chance):
    """Bytes of which a few are changed, put in or taken out."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        place = chance.randrange(len(changed) + 1)
        change = chance.randrange(4)
        if change == 0:
            changed[place:place] = chance.choice(BYTES)
        elif change == 1:
            del changed[place : place + chance.choice((1, 4, 100))]
        elif change == 2 and place < len(changed):
            changed[place] = chance.randrange(256)
        else:
            changed[place : place + 8] = chance.choice((b"\xff" * 8, b"\x00" * 8, b"\x7f" + b"\xff" * 7))
    return bytes(changed)


def mutated_value(document, chance):
    """A JSON value with one of its values replaced by a foreign one; for files whose digest is counted anew."""
    value = document
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = chance.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.93:
            value = inner
            continue
        if chance.random() < 0.1:
            del value[key]
        else:
            scaled = [inner * factor for factor in (-1, 1e-3, 1e3, 1e30, 1e-30)] if isinstance(inner, int | float) else []
            foreign = [0, -1, 1e99, 1e-99, 10**90, 1e308, 5e-324, None, True, "", "x", [], {}, [1.0] * 3000]
            value[key] = chance.choice([*scaled, *foreign])
        return document


def mutated(example, chance):
    """The example's content changed, in the way of its kind."""
    if example.changed is not None and chance.random() < 0.85:
        return example.changed(chance, mutated_value, mutated_text)
    if example.binary:
        return mutated_bytes(example.content, chance)
    return mutated_text(example.content.decode(), chance)


def run_case(kind, number, seed, folder, show=False):
    """Run one case; what is wrong with it, "" for nothing.  Raises the error where it is to be shown."""
    chance = random.Random(f"{seed} {kind} {number}")
    example = EXAMPLES[kind](folder)
    path = folder / f"input{example.suffix}"
    path.write_bytes(mutated(example, chance))
    said = io.StringIO()
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(MOST_S)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.TextIOWrapper(io.BytesIO())), redirect_stderr(said):
            warnings.simplefilter("error")
            status = example.run(path)
    except TimeoutError:
        return f"took more than {MOST_S} s: {_place()}"
    except MemoryError:
        return "took too much memory"
    except Exception:
        if show:
            raise
        return _place()
    finally:
        signal.alarm(0)
    lines = said.getvalue().strip().splitlines()
    if status not in (0, 1, 2, 3):
        return f"exit status {status}"
    return f"refused in {len(lines)} lines: {lines[:2]}" if status == 1 and len(lines) > 1 else ""


def _alarm(*_):
    raise TimeoutError


def _place():
    """The error under way and the last of our own lines that it passed."""
    kind, error, trace = sys.exc_info()
    ours = [frame for frame in traceback.extract_tb(trace) if not re.search("/site-packages/|/lib/python", frame.filename)]
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
    return f"{kind.__name__ if kind else ''} at {where}: {' '.join(str(error).split())[:100]}"


def _cases(cases, seed, pipe):
    """Run cases in a process of its own and say after each what came of it."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, hard))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = os.environ["XDG_STATE_HOME"] = folder
        for kind, number in cases:
            faulthandler.dump_traceback_later(3 * MOST_S, exit=True, file=sys.__stderr__)
            pipe.send((kind, number, run_case(kind, number, seed, Path(folder))))
    faulthandler.cancel_dump_traceback_later()
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def fuzz(kinds, count, seed):
    """Run `count` cases, shared out among the kinds: what was found, how many ran, and the highest memory of a process [byte]."""
    cases = [(kinds[number % len(kinds)], number // len(kinds)) for number in range(count)]
    found = []
    ran = peak = 0
    context = multiprocessing.get_context("fork")
    while cases:
        part, cases = cases[:CASES_OF_A_PROCESS], cases[CASES_OF_A_PROCESS:]
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_cases, args=(part, seed, sender))
        process.start()
        sender.close()
        done = 0
        try:
            while isinstance(message := receiver.recv(), tuple):
                kind, number, what = message
                done += 1
                found += [f"{kind} --case {number}: {what}"] if what else []
            peak = max(peak, message)
        except EOFError:  # the process was ended: by its limit, or by the watchdog
            kind, number = part[done]
            found.append(f"{kind} --case {number}: the process died")
            done += 1
            cases = part[done:] + cases
        ran += done
        process.join()
    return found, ran, peak


def main():
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--kind", action="append", choices=sorted(EXAMPLES))
    parser.add_argument("--case", type=int)
    given = parser.parse_args()
    kinds = given.kind or sorted(EXAMPLES)
    if given.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            found = run_case(kinds[0], given.case, given.seed, Path(folder), show=True)
        print(found or "nothing found")
        return bool(found)
    begin = time.monotonic()
    found, ran, peak = fuzz(kinds, given.count, given.seed)
    took = f"peak {peak / 1e6:.0f} MB, {time.monotonic() - begin:.0f} s"
    print("\n".join([*found, f"{ran:,} inputs of {len(kinds)} kinds, seed {given.seed}: {len(found)} findings, {took}"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
