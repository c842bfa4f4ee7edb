"""Traces that can be rescaled: what a model is traced to at other sizes, or a refusal, for every phase and form."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from estimator.cli import main
from estimator.errors import WorkloadError
from estimator.formats import read_workload
from estimator.forms.rescaling import Sizes, known_sizes, with_sizes
from estimator.forms.stored_growth import without_growth
from estimator.trace import trace_calls
from estimator.tracing.request import TraceRequest
from estimator.tracing.resizing import with_growth
from estimator.workload import Operator, Workload
from tests.estimator.traced import REASON

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, about running models
pytest.importorskip("torch", reason=REASON, exc_type=ImportError)
pytest.importorskip("transformers", reason=REASON, exc_type=ImportError)

LAYERS = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
WORDS = {**LAYERS, "vocab_size": 100}
GROUPED = {**WORDS, "num_key_value_heads": 2}
MODELS: dict[str, tuple[str, Mapping[str, int]]] = {
    "gpt2": ("gpt2", {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100}),
    "llama": ("llama-3-8b", GROUPED),
    "bert": ("bert-large", WORDS),
    "mixtral": ("mixtral-8x7b", GROUPED),
    "mistral": ("mistral-7b", {**GROUPED, "sliding_window": 200}),
    "vit": ("vit-base-16", LAYERS),
    "resnet": ("resnet-101", {}),
}
ELSEWHERE = ((20, 896), (1, 1), (3, 77), (1, 200), (4, 500), (7, 128), (8, 128), (2, 16), (300, 9000))
"""Batches and sequences, none of them those of a trace that tells the growth."""


def requested(name: str, phase: str, attention: str, batch: int = 4, precision: str = "bf16") -> TraceRequest:
    model, settings = MODELS[name]
    return TraceRequest(model=model, settings=settings, batch=batch, sequence=128, phase=phase, attention=attention, precision=precision)


@cache
def resizable(name: str, phase: str, attention: str, batch: int = 4, precision: str = "bf16") -> tuple[Workload, str]:
    request = requested(name, phase, attention, batch, precision)
    return with_growth(request, trace_calls(request), trace_calls)


def contents(workload: Workload) -> dict[Operator, float]:
    plain = without_growth(workload)
    return dict(zip(plain.operators, plain.counts, strict=True))


def followed(told: Workload, request: TraceRequest) -> int:
    """At how many sizes ELSEWHERE the file gives the trace; fails where it gives another one, or promises more memory than is held."""
    at, right = known_sizes(told), 0
    assert at is not None
    for batch, length in ELSEWHERE:
        try:
            there = with_sizes(told, at, Sizes(batch=batch, sequence=length if at.sequence else 0))
        except WorkloadError:
            continue
        seen = trace_calls(replace(request, batch=batch, sequence=length)).workload
        assert contents(there) == contents(seen), (batch, length)
        assert there.footprint is not None
        assert seen.footprint is not None
        assert there.footprint.weights_byte == seen.footprint.weights_byte
        assert there.footprint.optimizer_byte == seen.footprint.optimizer_byte
        assert there.footprint.cache_byte == pytest.approx(seen.footprint.cache_byte, abs=64)  # a window's cache counts its tokens, too
        assert there.footprint.passing_byte <= seen.footprint.passing_byte * 1.000001
        right += 1
    return right


@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize(
    ("name", "phase", "least"),
    [
        ("gpt2", "prefill", 6), ("gpt2", "decode", 6), ("gpt2", "train", 6), ("llama", "prefill", 6), ("llama", "decode", 6),
        ("llama", "train", 6), ("bert", "prefill", 5), ("bert", "train", 5), ("vit", "prefill", 6), ("vit", "train", 6),
        ("resnet", "prefill", 8), ("mixtral", "prefill", 3), ("mixtral", "decode", 3), ("mixtral", "train", 3), ("mistral", "prefill", 3),
        ("mistral", "decode", 3),
    ],
)  # fmt: skip
def test_a_resizable_trace_is_the_trace_at_other_sizes_or_refused(name: str, phase: str, attention: str, least: int) -> None:
    told, reason = resizable(name, phase, attention)
    assert reason == ""
    assert followed(told, requested(name, phase, attention)) >= least


@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
@pytest.mark.parametrize(("phase", "attention"), [("prefill", "eager"), ("prefill", "flash"), ("decode", "eager"), ("train", "eager")])
def test_one_sequence_is_rescaled_as_far_as_its_kernels_go(name: str, phase: str, attention: str) -> None:
    told, reason = resizable(name, phase, attention, 1)
    assert (told.resizing is not None and told.resizing.batch_most > 1) == (reason == "")
    assert followed(told, requested(name, phase, attention, 1)) >= 1


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "fp8"])
def test_precisions_that_are_written_after_the_trace_grow_too(precision: str) -> None:
    told, reason = resizable("llama", "prefill", "eager", 4, precision)
    assert reason == ""
    assert followed(told, requested("llama", "prefill", "eager", 4, precision)) >= 6


LAB = """
import torch

def fixed():
    return torch.nn.Linear(8, 8), (torch.zeros(3, 8),)

def ignores(batch, sequence):
    return torch.nn.Linear(8, 8), (torch.zeros(3, 8),)

def images(batch):
    return torch.nn.Conv2d(3, 4, 3), (torch.zeros(batch, 3, 16, 16),)

def positions(batch, sequence):
    class Learnt(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(torch.zeros(sequence, 8))
        def forward(self, x):
            return x + self.table
    return Learnt(), (torch.zeros(batch, sequence, 8),)
"""


def test_the_command_writes_growth_or_warns_once_and_ends_in_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab, out = tmp_path / "lab.py", tmp_path / "w.json"
    lab.write_text(LAB)
    for function, words, reason in (
        ("fixed", (), "its inputs have no batch and no sequence"),
        ("ignores", (), "nothing grows from batch 1, sequence 512 to batch 2, sequence 1536; a --batch of 2 or more may help"),
        ("positions", ("--batch", "2"), "at batch 4, sequence 1536 its memory does not follow"),
    ):
        assert main(["trace", f"{lab}:{function}", *words, "--resizable", "-o", str(out), "--force"]) == 3
        warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
        assert warnings == [f"warning: the file cannot be rescaled: {reason}"]
        assert read_workload(out).resizing is None
    assert main(["trace", f"{lab}:images", "--resizable", "-o", str(out), "--force"]) == 0
    assert read_workload(out).resizing is not None
    capsys.readouterr()
    assert main(["sweep", str(out), "--bundle", "a100-pcie-40gb-eager", "--batch", "1,32", "--freqs", "1410", "--json", "-q"]) in (0, 3)
    assert [point["batch"] for point in json.loads(capsys.readouterr().out)] == [1, 32]
