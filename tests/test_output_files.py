"""Files that commands write: nothing that exists is replaced unless the user says so; and the options that every command takes."""

import json
import os
from pathlib import Path

import click
import pytest

from collector.cli import main as collect
from collector.commands.collect import COMMANDS as COLLECT_COMMANDS
from collector.commands.collect import collect_command
from estimator.cli import main as estimate
from estimator.commands.estimate import COMMANDS as ESTIMATE_COMMANDS
from estimator.commands.estimate import estimate_command
from estimator.options.command_line import FORCE, OutputFile, OutputPlace
from estimator.vocabulary.errors import UnwrittenError
from estimator.vocabulary.whole_file import open_whole, try_place, write_whole
from fitter.cli import main as fit
from fitter.commands.fit import COMMANDS as FIT_COMMANDS
from fitter.commands.fit import fit_command
from tests.estimator import estimating
from tests.estimator.estimating import fails
from tests.processes import PYTHON, ended
from tests.words import one_line

SIMULATED = "--gpu sim:a100-pcie-40gb"
BUNDLE = "--bundle a100-pcie-40gb-eager"
WORKLOAD = "examples/gpt2-prefill.json"

WORDS = {
    "collect": f"{SIMULATED} --dry-run",
    "collect correct": "--readings INPUT --sensor INPUT",
    "collect export": "INPUT --to csv",
    "collect pmd decode": "INPUT",
    "collect pmd log": "INPUT",
    "collect practice": f"{SIMULATED} --trials 1 examples/gpt2-prefill.json",
    "collect report": "INPUT",
    "collect run": f"{SIMULATED} true",
    "collect sensor": SIMULATED,
    "collect sensors": "a10 --entry INPUT",
    "collect submit": f"quick {SIMULATED}",
    **dict.fromkeys(("estimate", "estimate best", "estimate compare", "estimate explain", "estimate sweep"), f"{WORKLOAD} {BUNDLE}"),
    "estimate blocks": BUNDLE,
    "estimate llm": f"llama-3-8b {BUNDLE} --prompt 64 --output 8 --batch 1 --weights bf16",
    "estimate trace": "gpt2",
    "fit": "INPUT",
    "fit probes": "a100-pcie-40gb-eager --gpu a10",
    "fit release": "a100-pcie-40gb-eager --version 9.0.0",
}
"""What each command that writes files is asked for; a command with an output option that is not here fails the test."""

READ = [
    "--against", "--anchor", "--arch", "--at", "--attention", "--batch", "--blocks", "--budget", "--bundle", "--campaign", "--column",
    "--compare", "--config", "--duration", "--efficiency", "--energies", "--engine", "--families", "--fault", "--freq", "--freqs", "--gpu",
    "--gpu-spec", "--host", "--idle-power", "--kernels", "--key", "--kv", "--load", "--longest", "--model", "--name", "--note",
    "--planned-budget", "--pmd", "--poll-ms", "--power", "--precision", "--prior", "--published", "--rails", "--readings",
    "--entry", "--modules", "--reference", "--require", "--runtime", "--scheduler", "--sensor",
    "--sequence", "--set", "--signature", "--tensor-parallel", "--version", "--weights", "--workload", "--zero",
]  # fmt: skip
"""Options with a text that name no file to write; another one is an output, or is added here."""


def commands():
    """Every command of the three programs."""

    def below(name, command):
        yield name, command
        if isinstance(command, click.Group):
            for word in command.list_commands(click.Context(command)):
                yield from below(f"{name} {word}", command.get_command(click.Context(command), word))

    yield from below("collect", collect_command)
    yield "fit", fit_command
    yield from ((f"fit {word}", command) for word, command in FIT_COMMANDS.items())
    yield "estimate", estimate_command
    for word, place in ESTIMATE_COMMANDS.items():
        module, _, name = place.partition(":")
        yield f"estimate {word}", getattr(__import__(module, fromlist=[name]), name)


OUTPUTS = [
    (name, parameter)
    for name, command in commands()
    for parameter in command.params
    if isinstance(parameter.type, OutputFile | OutputPlace)
]


def run(name, *parts):
    program, _, command = name.partition(" ")
    return estimating.run(tuple(command.split()), *parts, program={"collect": collect, "estimate": estimate, "fit": fit}[program])


def test_every_option_that_may_name_a_file_to_write_is_declared_as_one():
    texts = [
        (name, parameter.opts[-1])
        for name, command in commands()
        for parameter in command.params
        if isinstance(parameter, click.Option)
        and isinstance(parameter.type, click.types.StringParamType | click.types.FuncParamType | click.Path)
        and not isinstance(parameter.type, OutputFile | OutputPlace)
        and parameter.opts[-1] not in READ
    ]
    assert not texts
    assert {name for name, _ in OUTPUTS} == set(WORDS)


@pytest.mark.parametrize("name, option", [pytest.param(n, p, id=f"{n} {p.opts[-1]}") for n, p in OUTPUTS])
def test_no_command_replaces_what_exists(name, option, tmp_path, monkeypatch):
    """With words that are accepted otherwise, also in a dry run, and with words that are refused later."""
    monkeypatch.setenv("WATTPRINT_CONFIG", "")
    (tmp_path / "input.csv").write_text("t_s,power_w\n0,1\n")
    kept = tmp_path / ("kept.parquet" if isinstance(option.type, OutputPlace) else "kept.json")
    kept.write_text("mine")
    words = WORDS[name].replace("INPUT", str(tmp_path / "input.csv"))
    if name == "collect" and option.opts[-1] == "--out":
        words = words.removesuffix("--dry-run")
    if name == "collect submit" and option.opts[-1] != "--out":
        words += f" --out {tmp_path / 'other'}"
    found = run(name, option.opts[-1], kept, words)
    assert (found.status, found.out, found.err.count("\n")) == (1, "", 1)
    assert (FORCE if FORCE in {p.name for p in dict(commands())[name].params} else "") in found.err or "--fresh" in found.err
    assert kept.read_text() == "mine"


def test_force_replaces_a_file_but_never_what_the_command_reads(tmp_path):
    workload, out, link = (tmp_path / name for name in ("w.json", "out.json", "link.json"))
    workload.write_bytes(Path(WORKLOAD).read_bytes())
    out.write_text("mine")
    assert run("estimate", workload, BUNDLE, "-o", out, "--force").status == 0
    assert json.loads(out.read_text())
    link.symlink_to(workload)
    for name in (workload, link):
        assert "reads" in fails(workload, BUNDLE, "-o", name, "--force")
    assert workload.read_bytes() == Path(WORKLOAD).read_bytes()
    assert "no folder" in fails("sweep", workload, BUNDLE, "-o", tmp_path / "no" / "a.json")


def test_a_killed_writer_leaves_nothing_that_the_next_one_does_not_clear(tmp_path):
    target = tmp_path / "a.json"
    write_whole(target, b"old")
    kill = (
        "import os, sys; from pathlib import Path; from estimator.vocabulary.whole_file import open_whole\n"
        "with open_whole(Path(sys.argv[1])) as stream:\n    stream.write(b'half'); os.kill(os.getpid(), 9)"
    )
    assert ended(*PYTHON, kill, target).returncode == -9
    assert len(os.listdir(tmp_path)) == 2
    assert target.read_bytes() == b"old"
    with open_whole(target) as stream:
        assert len(os.listdir(tmp_path)) == 2, "what the killed process has left is gone, what this one writes is there"
        write_whole(tmp_path / "b.json", b"")
        stream.write(b"new")
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b.json"]
    assert target.read_bytes() == b"new"


def test_what_cannot_be_written_is_known_before_the_work(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    unwritable = [Path("/proc/d.parquet")] if Path("/proc/self").exists() else []
    for path in (tmp_path, *(tmp_path / name for name in ("no/d.parquet", "pipe", "loop", "x\0", "x" * 100_000)), *unwritable):
        with one_line(UnwrittenError, match="cannot be written"):
            try_place(path)
    try_place(tmp_path / "d.parquet")
    assert sorted(os.listdir(tmp_path)) == ["loop", "pipe"]


def test_a_write_that_fails_leaves_the_old_file_and_says_which(tmp_path):
    write_whole(tmp_path / "a", b"old")

    def fill():
        with open_whole(tmp_path / "a") as stream:
            stream.write(b"half")
            raise OSError(28, os.strerror(28))

    with pytest.raises(UnwrittenError, match=r"a: cannot be written \(No space left"):
        fill()
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


# Options of all commands ----------------------------------------------------------------------------------------------

COMMANDS = ((collect, COLLECT_COMMANDS), (estimate, ESTIMATE_COMMANDS), (fit, FIT_COMMANDS))


@pytest.mark.parametrize(
    "words, said",
    [
        ("trace gpt2 --list", "or ask for --list"), ("counts x.csv --metrics", "not both"),
        ("sweep x.csv --gpu a10 --csv --json", "csv and json: an answer has one form"),
        ("explain x.csv --gpu a10 -o x.svg --csv", "csv and svg: an answer has one form"),
        ("x.csv --gpu a10 -o x.txt --json", "json and txt: an answer has one form"),
        ("x.csv --gpu a10 -o x.svg --csv", "csv and svg: an answer has one form"),
        ("--model llama-3-8b --gpu h100 --at batch=1", "--at is of workload files"),
        ("--model llama-3-8b --gpu h100 --host-launch-us 5 --runtime serving", "--host-launch-us has no meaning with --runtime serving"),
        ("x.csv --anchor a10-eager --holdout 0.1", "no --prior or --holdout beside it"),
    ],
)  # fmt: skip
def test_options_of_two_ways_of_working_are_not_mixed(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("")
    assert said in fails(words, status=2, program=fit if "--anchor" in words else estimate)


@pytest.mark.parametrize("command, name", [(main, name) for main, names in COMMANDS for name in names])
def test_every_command_takes_quiet_and_verbose_and_o_for_out(command, name):
    status, told, _ = estimating.run(name, "--help", program=command)
    assert status == 0
    assert "--quiet" in told
    assert "--verbose" in told
    assert told.count("  --out ") == 0


TWICE, LACKING = "; give it once", "its value is missing"


@pytest.mark.parametrize(
    "said, name, words",
    [
        (TWICE, "estimate", "x.json --freqs 900 --freq 1410"), (TWICE, "estimate sweep", "x.json --batch=1 --batch 1"),
        (TWICE, "fit", "x --gpu a10 --gpu a10"),
        (TWICE, "estimate trace", "x --head --no-head"), (TWICE, "fit show", "x --published volta --published turing"),
        (TWICE, "collect", "--fresh --resume"), (TWICE, "collect sensor", "--gpu 0 --gpu 1"),
        (TWICE, "collect pmd decode", "x -o a --out b"), (TWICE, "collect run", "--repeats 1 --repeats 2 x"),
        (LACKING, "estimate llm", "gpt2 --best --gpu h100"), (LACKING, "estimate", "x.json --gpu --json"), (LACKING, "fit", "x -o --help"),
    ],
)  # fmt: skip
def test_an_option_of_one_value_is_given_one_that_is_no_option(said, name, words):
    status, told, err = run(name, words)
    assert (status, told, err.count("\n"), said in err) == (2, "", 1, True), err
    assert said == LACKING or run(name, "--help", words)[0] == 0
