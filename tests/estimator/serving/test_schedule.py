"""Laws of a steady state, for engines and boards drawn at random."""

from dataclasses import replace

import numpy as np
import pytest

from estimator.serving.intervals import interpolated
from estimator.serving.schedule import Host, Load, StepCost, at_rate, closed_loop

SLOTS = np.arange(1.0, 257.0)
seeds = pytest.mark.parametrize("seed", range(20))


def drawn(seed):
    """A load whose steps read weights once and then cost something for every sequence, in seconds and in joules."""
    random = np.random.default_rng(seed)
    fixed, each, prompt = random.uniform([1e-3, 1e-6, 1e-3], [3e-2, 2e-4, 1.0])
    host = Host(*(random.uniform(0.0, high, ()) for high in (3e-3, 1e-4, 5e-3)))
    watt = random.uniform(200.0, 700.0)

    def step(seconds):
        return StepCost(seconds, watt * seconds)

    return Load(
        output=int(random.integers(2, 2000)),
        chunks=float(random.choice([0.01, 0.3, 2.5])),
        host=host,
        queued=float(random.uniform()),
        most=float(random.choice([0.2, 3.0, np.inf])),
        waiting_w=np.array(100.0),
        rest_w=np.array(60.0),
        decode=lambda sequences: step(fixed + each * sequences),
        prompt=lambda sequences: step(prompt + 0.0 * sequences),
        alone=step(np.array(prompt)),
    )


@seeds
def test_a_closed_loop_keeps_its_laws(seed):
    load = drawn(seed)
    found = closed_loop(load, SLOTS)
    assert np.all(np.diff(found.tokens_per_s) > 0)
    assert np.all(np.diff(found.tpot_s) > 0)
    assert found.decode_s + found.prompt_s + found.waiting_s == pytest.approx(found.slot_s)
    assert (load.output - 1) * found.tpot_s + found.ttft_loaded_s == pytest.approx(found.slot_s)
    assert (found.prompt_j + found.output_j) / load.output == pytest.approx(found.power_w / found.tokens_per_s)
    assert np.all((found.power_w > 100.0) & (found.power_w < 700.0))
    assert np.all(found.ttft_s <= found.ttft_loaded_s)
    assert np.all(found.ttft_loaded_s <= found.ttft_most_s)
    alone = closed_loop(load, np.array([1.0]))
    assert alone.ttft_s == alone.ttft_loaded_s == alone.ttft_most_s
    slower = closed_loop(replace(load, host=Host(*(2.0 * time for time in load.host))), SLOTS)
    assert np.all(slower.tokens_per_s < found.tokens_per_s)


@seeds
def test_the_boards_wait_for_what_the_host_does_beside_them_only_where_it_takes_longer(seed):
    load, random = drawn(seed), np.random.default_rng(100 + seed)
    plain, steps = closed_loop(load, SLOTS), load.output - 1
    decode_s, prompts_s = load.decode(SLOTS).seconds, SLOTS * load.prompt(SLOTS).seconds
    of_step, of_sequence, of_prompt = random.uniform(0.0, [3e-2, 1e-3, 1.0])
    host = load.host._replace(overlapped_step_s=of_step, overlapped_sequence_s=of_sequence, overlapped_prompt_s=of_prompt)
    found = closed_loop(replace(load, host=host), SLOTS)
    with_prompts = np.array([max(min(steps, slots), slots * load.chunks) for slots in SLOTS])
    first_s = max(of_prompt - float(load.alone.seconds), 0.0)  # no step ends before it is launched
    mixed, beside_s = np.minimum(steps, with_prompts), of_step + of_sequence * SLOTS
    bare = (steps - mixed) * np.maximum(beside_s - decode_s, 0.0)
    longer = bare + np.maximum(mixed * (beside_s - decode_s) + with_prompts * of_prompt - prompts_s, first_s)
    assert found.ttft_s == pytest.approx(plain.ttft_s + first_s)
    assert found.slot_s == pytest.approx(plain.slot_s + longer)
    of_host, of_boards = steps * beside_s + with_prompts * of_prompt, steps * decode_s + prompts_s
    assert np.all(longer >= (1.0 - 1e-9) * np.maximum(of_host - of_boards, first_s))  # the longer of the two at least, as if all overlapped
    assert np.all(longer <= (1.0 + 1e-9) * (of_host + first_s))  # at most as if nothing did
    assert found.waiting_s == pytest.approx(plain.waiting_s + longer)
    assert steps * found.tpot_s + found.ttft_loaded_s == pytest.approx(found.slot_s)


def rated(load, rate):
    return closed_loop(load, at_rate(load, rate, np.array(256.0), lambda state: state))


@seeds
def test_a_rate_runs_as_many_as_make_that_rate(seed):
    load = drawn(seed)
    asked = closed_loop(load, np.array([1.0, 7.0, 100.0]))
    for running, tokens_per_s in zip(asked.running, asked.tokens_per_s, strict=True):
        assert rated(load, tokens_per_s / load.output).running == pytest.approx(running)
    rare = rated(load, 1e-3 * asked.tokens_per_s[0] / load.output)
    assert rare.tokens_per_s == pytest.approx(1e-3 * asked.tokens_per_s[0])
    assert rare.running == pytest.approx(1e-3)
    assert rare.power_w == pytest.approx(60.0, rel=0.02)
    assert (rare.prompt_j + rare.output_j) / load.output == pytest.approx(rare.power_w / rare.tokens_per_s)
    most = rated(load, 1e9)
    assert (most.running, most.tokens_per_s) == pytest.approx((256.0, closed_loop(load, SLOTS).tokens_per_s[-1]))


@seeds
def test_a_rate_takes_the_fewest_sequences_that_keep_up_with_it(seed):
    load = drawn(seed)

    def stepped(slots):
        step = load.decode(slots)
        return step._replace(seconds=step.seconds * np.where(slots > 60.0, 3.0, 1.0))

    edged = replace(load, decode=stepped)
    asked = closed_loop(edged, np.array(58.0))
    assert rated(edged, asked.tokens_per_s / load.output).running == pytest.approx(asked.running)


def test_costs_are_interpolated_between_their_nodes():
    at, values = np.array([1.0, 2.0, 4.0]), np.array([[[1.0, 3.0, 4.0]]])
    assert interpolated(at, values, np.array([[[1.0, 1.5, 2.0, 3.0, 4.0]]])).tolist() == [[[1.0, 2.0, 3.0, 3.5, 4.0]]]
    assert interpolated(at[:1], values[..., :1], np.array([[[1.0, 9.0]]])).tolist() == [[[1.0, 1.0]]]
