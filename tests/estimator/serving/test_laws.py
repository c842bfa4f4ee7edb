"""Laws of served answers that need no measurement, over questions of all kinds."""

import random
from dataclasses import replace
from typing import NamedTuple

import pytest

from estimator import Serving, bundle_for, estimate
from estimator.engine.board import open_board
from estimator.serving.answers import serve_many
from estimator.serving.architecture import Layout, read_architecture, read_config
from estimator.serving.engines import engine_names
from estimator.serving.steps import ROUTING_SKEW, Step, step_workload
from estimator.serving.weights import read_weights
from tests.estimator.serving import MEASURES

MODELS = ("gemma-3-27b", "gpt-oss-20b", "llama-3.1-8b", "mistral-nemo", "qwen2-1.5b", "qwen3-30b-a3b", "qwen3.5-9b")
GPUS = ("a100-sxm-80gb", "b200-sxm", "h100-pcie", "h100-sxm", "h200-sxm", "l40s")


class Question(NamedTuple):
    serving: Serving
    gpu: str

    def answer(self, *, clock_mhz=None, cap_w=None, **changes):
        serving = replace(self.serving, **changes)
        bundle, gpu = bundle_for(self.gpu, serving.formats, served=True)
        board = open_board(bundle, gpu=gpu, sm_clock_mhz=clock_mhz, power_cap_w=cap_w)
        return serve_many(serving, board, (serving.batch,))[0], board


def drawn(seed):
    draw = random.Random(seed)

    def size(most):
        return round(2.0 ** draw.uniform(0.0, most))

    sizes = {"prompt": size(12), "output": 1 + size(10), "batch": size(9), "tensor_parallel": draw.choice((2, 4))}
    formats = {"weights": draw.choice((None, "fp8", "int4")), "kv": draw.choice((None, "fp8"))}
    engine = draw.choice((None, *engine_names()))
    gpus = [gpu for gpu in GPUS if formats["weights"] != "fp8" or not gpu.startswith("a100")]
    return Question(Serving(model=draw.choice(MODELS), engine=engine, **sizes, **formats), draw.choice(gpus))


QUESTIONS = [drawn(seed) for seed in range(16)]


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_an_answer_keeps_the_laws_of_its_quantities(question):
    asked, (one, board) = question.serving, question.answer()
    slower, capped = (question.answer(**less)[0] for less in ({"clock_mhz": 0.6 * board.asked_mhz[0]}, {"cap_w": 0.7 * board.limit_w}))
    for found, limit_w in ((one, board.limit_w), (slower, board.limit_w), (capped, 0.7 * board.limit_w)):
        for name in MEASURES:
            assert getattr(found, f"{name}_low") <= getattr(found, name) <= getattr(found, f"{name}_high"), name
        assert found.power_w == pytest.approx(found.tokens_per_s * found.energy_per_token_j)
        assert found.prompt_energy_j + found.output_energy_j == pytest.approx(asked.output * found.energy_per_token_j)
        assert found.slot_s == pytest.approx(found.ttft_loaded_s + (asked.output - 1) * found.tpot_s, rel=1e-3)
        assert found.tokens_per_s * found.slot_s == pytest.approx(asked.output * asked.batch, rel=1e-3)
        assert sum(share for part, share in found.parts.items() if part != "prompts") == pytest.approx(1.0)
        assert found.busy == pytest.approx(1.0 - found.parts["waiting"])
        assert 0.0 < found.power_w < 1.01 * limit_w * found.gpus or "even at the lowest clock" in str(found.warnings)
    for less in (slower, capped):
        for name in ("tokens_per_s", "power_w"):
            assert getattr(less, name) <= getattr(one, name) * (1.0 + 1e-6), name
        for name in ("ttft_s", "slot_s"):
            assert getattr(less, name) >= getattr(one, name) * (1.0 - 1e-6), name


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_more_work_takes_longer_and_twice_the_gpus_no_less_than_half(question):
    one, several = question.answer(tensor_parallel=1)[0], question.answer()[0]
    gpus = several.gpus
    assert gpus * several.memory.weights_byte >= one.memory.weights_byte
    assert several.memory.cache_per_token_byte * gpus >= one.memory.cache_per_token_byte
    if one.running == several.running:
        for name in ("ttft_s", "tpot_s"):
            assert gpus * getattr(several, name) > 0.94 * getattr(one, name), name
    for name in ("prompt", "output", "batch"):
        more = question.answer(**{name: 2 * getattr(question.serving, name)})[0]
        if more.running >= several.running:
            assert more.slot_s > 0.97 * several.slot_s, name


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-120b"])
def test_gpus_that_wait_for_the_one_with_the_fullest_experts_do_not_compute_its_tokens(name):
    """Unequal loads add waiting, at half of the power at most, and a few tiles."""
    config = read_config(name)
    model, weights, layout = read_architecture(config), read_weights(config), Layout(tensor_parallel=8, expert_parallel=8)
    bundle, gpu = bundle_for("h200-sxm", (weights.layer,), served=True)
    step = Step(prompts=((4096, 4096),))
    even, uneven = (estimate(step_workload(model, weights, layout, step, "vllm", skew), bundle, gpu=gpu)[0] for skew in (0.0, ROUTING_SKEW))
    assert uneven.energy_j < 1.05 * even.energy_j + 0.5 * even.power_w * (uneven.latency_s - even.latency_s)
    own_j = sum(kernel.energy_j * kernel.count for kernel in uneven.kernels)
    assert own_j == pytest.approx(uneven.energy_j, rel=0.02)
