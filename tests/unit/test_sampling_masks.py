"""Allowed tokens, bad words and log probabilities, on logits made by hand."""

from __future__ import annotations

import numpy as np
import torch

from llmrt.sampling import logprobs
from llmrt.sampling.logprobs import Logprobs
from llmrt.sampling.sampler import Sampler
from llmrt.wire import Sampling, f32s, u32, u32s

VOCAB = 12
EOS = 11


def run(sampling: Sampling, favoured: list[int], steps: int, prompt: list[int] | None = None) -> list[int]:
    """Greedy tokens where the model prefers tokens in the order of ``favoured``, whatever came before."""
    sampler = Sampler(2, VOCAB, (EOS,))
    tokens = list(prompt or [0])
    length = len(tokens)
    sampler.start(1, sampling, torch.tensor(tokens), length)
    for _ in range(steps):
        logits = torch.zeros(1, VOCAB)
        for rank, token in enumerate(favoured):
            logits[0, token] = 50.0 - rank
        tokens += sampler.sample(logits, np.array([1]), np.array([len(tokens)])).tolist()
    return tokens[length:]


def test_only_allowed_tokens_are_chosen() -> None:
    allowed = u32([3, 7, EOS])
    greedy = Sampling(temperature=0.0, seed=0, allowed_token_ids=allowed)
    assert run(greedy, [5, 6, 7, 3], 2) == [7, 7]
    # Neither a bias nor a high temperature brings others back.
    biased = Sampling(temperature=2.0, seed=4, allowed_token_ids=allowed, logit_bias=[(5, 100.0)], min_tokens=40)
    assert set(run(biased, [5], 40)) == {3, 7}


def test_bad_words_are_never_completed() -> None:
    words = [u32([4]), u32([5, 5, 6])]
    greedy = Sampling(temperature=0.0, seed=0, bad_words=words)
    assert run(greedy, [4, 5, 6], 3) == [5, 5, 5]
    assert run(greedy, [4, 6, 5], 3, prompt=[5]) == [6, 6, 6]
    # The prompt counts: 6 completes a word behind two of 5, and only there.
    assert run(greedy, [6, 5], 3, prompt=[9, 5, 5]) == [5, 5, 5]
    assert run(greedy, [6, 5], 1, prompt=[5]) == [6]


def test_a_bad_word_passes_where_nothing_else_may() -> None:
    sampling = Sampling(temperature=0.0, seed=0, allowed_token_ids=u32([4]), bad_words=[u32([4, 4])])
    assert run(sampling, [1], 3) == [4, 4, 4]
    sampling = Sampling(temperature=0.7, seed=0, allowed_token_ids=u32([4, EOS]), bad_words=[u32([4, 4])], min_tokens=3)
    assert run(sampling, [EOS], 4) == [4, 4, 4, EOS]


def test_a_slot_used_again_keeps_no_mask() -> None:
    sampler = Sampler(1, VOCAB, ())
    masked = Sampling(temperature=0.0, seed=0, allowed_token_ids=u32([3]), bad_words=[u32([8])])
    sampler.start(0, masked, torch.tensor([1]), 1)
    sampler.free(0)
    sampler.start(0, Sampling(temperature=0.0, seed=0), torch.tensor([1]), 1)
    logits = torch.zeros(1, VOCAB)
    logits[0, 8] = 1
    assert sampler.sample(logits, np.array([0]), np.array([1])).tolist() == [8]


def test_of_equal_tokens_the_lowest_stands_first() -> None:
    scores = torch.zeros(3, 1000)
    scores[1, [900, 30, 400]] = 2.0
    scores[2] = torch.arange(1000)
    assert logprobs.best(scores, 4).tolist() == [[0, 1, 2, 3], [30, 400, 900, 0], [999, 998, 997, 996]]
    assert logprobs.best(scores, 0).shape == (3, 0)


def test_values_are_of_the_logits_as_they_came_and_of_rows_that_asked() -> None:
    kept = Logprobs(4)
    for slot, top in ((0, None), (1, 2), (2, 0), (3, None)):
        kept.start(slot, Sampling(logprobs=top))
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(3))
    expected = logits.double().log_softmax(1)
    report = kept.keep(logits, np.array([2, 0, 1]))
    assert report is not None
    logits.fill_(-torch.inf)
    (row, top, columns), (second, second_top, second_columns) = report.score(torch.tensor([5, 6, 7]))
    assert (row, top, second, second_top) == (0, 0, 2, 2)
    assert abs(f32s(columns[0])[0] - expected[0, 5]) < 1e-5 and columns[1:] == (b"", b"")
    best = expected[2].topk(2)
    assert u32s(second_columns[1]).tolist() == best.indices.tolist()
    assert np.allclose(f32s(second_columns[2]), best.values, atol=1e-5)
    assert abs(f32s(second_columns[0])[0] - expected[2, 7]) < 1e-5
    assert kept.keep(logits, np.array([0, 3])) is None
    kept.free(1)
    assert kept.keep(logits, np.array([1])) is None


def test_a_row_does_not_feel_how_many_share_its_call() -> None:
    logits = torch.randn(64, 49152, generator=torch.Generator().manual_seed(1)) * 5
    tokens = torch.arange(64)
    chosen, ids, values = logprobs.score(logits, tokens, 5)
    for rows in (slice(7, 8), slice(5, 20)):
        alone = logprobs.score(logits[rows], tokens[rows], 5)
        assert all(np.array_equal(a, b[rows]) for a, b in zip(alone, (chosen, ids, values), strict=True))
