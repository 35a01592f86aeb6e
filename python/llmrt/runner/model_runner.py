"""One rank: a model, its KV memory and the state of its slots, driven by plans."""

from __future__ import annotations

import logging
import time
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from llmrt.attention.base import KVCache, Sequences
from llmrt.attention.torch_sdpa import TorchSdpa
from llmrt.layers.linear import Kernels, segments
from llmrt.model_config import ModelError
from llmrt.model_source import ModelSource
from llmrt.models import build as building
from llmrt.models.decoder import Decoder
from llmrt.models.registry import variant
from llmrt.runner import batch as batching
from llmrt.runner import memory
from llmrt.runner.batch import Batch
from llmrt.runner.options import RunnerOptions
from llmrt.runner.prompt_logprobs import PromptLogprobs
from llmrt.runner.slots import Ints, SlotTable
from llmrt.sampling.logprobs import Logprobs
from llmrt.sampling.sampler import Sampler
from llmrt.scheduler.plan import PAGE_SIZE, ExecutorInfo, RowLogprobs, StepPlan, StepResult
from llmrt.weights import names, open_weights

Bools = npt.NDArray[np.bool_]

logger = logging.getLogger(__name__)


class ModelRunner:
    """Executes plans in order. Not thread-safe."""

    def __init__(
        self, decoder: Decoder, kernels: Kernels, backend: TorchSdpa, sampler: Sampler, info: ExecutorInfo
    ) -> None:
        self._decoder = decoder
        self._kernels = kernels
        self._backend = backend
        self._sampler = sampler
        self._logprobs = Logprobs(info.num_slots)
        self._prompt_logprobs = PromptLogprobs()
        self._slots = SlotTable(info.num_slots, info.max_model_len, info.num_pages, info.vocab_size)
        self.info = info

    @classmethod
    def load(cls, source: ModelSource, options: RunnerOptions) -> ModelRunner:
        """Reads the model. Raises :class:`ModelError` when it cannot be run as asked."""
        begin = time.monotonic()
        config, family = source.config, variant(source.config.architecture)
        max_model_len = options.max_model_len or config.max_position_embeddings
        if max_model_len > config.max_position_embeddings:
            raise ModelError(
                f"max_model_len {max_model_len} is more than the {config.max_position_embeddings} positions "
                f"that {source.name} was made for"
            )
        try:
            kernels = building.choose_kernels(config, options.dtype)
        except ValueError as error:
            raise ModelError(str(error)) from error
        needed = names.needed(config, family.output_bias)
        pages = memory.num_pages(config, options, max_model_len, building.weight_bytes(needed, kernels))
        cache = KVCache(config.num_layers, config.num_kv_heads, pages, PAGE_SIZE, config.head_dim)
        backend = TorchSdpa(cache)
        with torch.inference_mode(), open_weights(source, needed, names.optional(config), options.progress) as weights:
            decoder = building.build(config, family, weights, kernels, backend, max_model_len + 1)
        sampler = Sampler(options.num_slots, config.vocab_size, source.eos_token_ids)
        info = ExecutorInfo(pages, PAGE_SIZE, options.num_slots, max_model_len, config.vocab_size)
        logger.info(
            "loaded %s in %.1f s: %d KV pages of %d tokens, %d slots, %d threads",
            source.name, time.monotonic() - begin, pages, PAGE_SIZE, options.num_slots, torch.get_num_threads(),
        )  # fmt: skip
        return cls(decoder, kernels, backend, sampler, info)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Runs one step. Raises :class:`llmrt.runner.slots.PlanError` on a plan that contradicts the slots."""
        self._update_slots(plan)
        batch = batching.build(plan, self._slots)
        if batch is None:
            return StepResult(plan.step, b"")
        hidden, overflown = self._hidden(batch.ids, batch.positions, batch.exact, batch.sequences)
        failed = {*batch.origin[overflown].tolist()}
        result = StepResult(plan.step, b"")
        logits_of = partial(self._exact_logits, hidden)
        result.prompt_logprobs = self._prompt_logprobs.of(batch, self._slots, logits_of)
        failed.update(
            one.row for one in result.prompt_logprobs if not np.isfinite(np.frombuffer(one.chosen, "<f4")).all()
        )
        if batch.last.size:
            failed |= self._sample(hidden, batch, result)
        result.failed = sorted(failed)
        return result

    def _sample(self, hidden: torch.Tensor, batch: Batch, result: StepResult) -> set[int]:
        """Adds a token of each sequence that is sampled to its slot and to ``result``; says which rows failed."""
        logits = self._logits(hidden, batch.last, batch.last_exact)
        overflown = _not_finite(logits)
        if overflown.size:
            logits[torch.from_numpy(overflown)] = 0
        origin = batch.origin[batch.last]
        kept = self._logprobs.keep(logits, batch.slots)
        tokens = self._sampler.sample(logits, batch.slots, batch.next_positions)
        if kept is not None:
            found = (RowLogprobs(int(origin[row]), top, *columns) for row, top, columns in kept.score(tokens))
            result.logprobs = sorted(found, key=lambda one: one.row)
        self._slots.append(batch.slots, batch.next_positions, tokens.numpy())
        in_plan_order = np.empty(len(tokens), "<u4")
        in_plan_order[batch.order] = tokens.numpy()
        result.tokens = in_plan_order.tobytes()
        return {*origin[overflown].tolist()}

    @torch.inference_mode()
    def logits(self, tokens: list[int], pages: list[int]) -> torch.Tensor:
        """Logits after every one of ``tokens`` alone in a sequence: float32 ``[len(tokens), vocab_size]``.

        ``pages`` (distinct, none 0) are overwritten and must hold the tokens; a scheduler must not have granted them.
        """
        if not tokens or len(pages) * PAGE_SIZE < len(tokens):
            raise ValueError(f"{len(tokens)} tokens do not fit {len(pages)} pages of {PAGE_SIZE}")
        sequences = Sequences(np.zeros(1, np.int64), np.array([len(tokens)]), np.array([pages], np.int64))
        exact = np.ones(len(tokens), np.bool_)
        hidden, _ = self._hidden(np.array(tokens, np.int64), np.arange(len(tokens)), exact, sequences)
        return self._exact_logits(hidden, np.arange(len(tokens)))

    def _update_slots(self, plan: StepPlan) -> None:
        for slot in plan.freed:
            self._slots.free(slot)
            for each in (self._sampler, self._logprobs, self._prompt_logprobs):
                each.free(slot)
        for start in plan.starts:
            tokens = self._slots.start(start)
            self._sampler.start(start.slot, start.sampling, torch.from_numpy(tokens), start.prompt_tokens)
            self._logprobs.start(start.slot, start.sampling)
            self._prompt_logprobs.start(start)
        for grant in plan.grants:
            self._slots.grant(grant)

    def _hidden(self, ids: Ints, positions: Ints, exact: Bools, sequences: Sequences) -> tuple[torch.Tensor, Ints]:
        """Hidden states, and which of their rows are not finite; the latter leave nothing in the KV memory."""
        number = len(ids)
        rows = segments(exact, self._kernels)
        padding = (0, rows[-1].computed - number)
        plan = self._backend.plan(sequences)
        ids, positions = np.pad(ids, padding), np.pad(positions, padding)
        hidden = self._decoder.hidden(torch.from_numpy(ids), torch.from_numpy(positions), plan, rows)
        # A NaN or an infinity in any layer's keys or values reaches the row's own hidden state, so one look is enough.
        overflown = _not_finite(hidden[:number])
        if overflown.size:
            self._backend.clear(overflown, plan)
        return hidden, overflown

    def _logits(self, hidden: torch.Tensor, chosen: Ints, exact: Bools) -> torch.Tensor:
        rows = segments(exact, self._kernels)
        padding = (0, rows[-1].computed - len(chosen))
        chosen_rows = hidden.index_select(0, torch.from_numpy(np.pad(chosen, padding)))
        return self._decoder.logits(chosen_rows, rows)[: len(chosen)]

    def _exact_logits(self, hidden: torch.Tensor, chosen: Ints) -> torch.Tensor:
        return self._logits(hidden, chosen, np.ones(len(chosen), np.bool_))


def _not_finite(x: torch.Tensor) -> Ints:
    """The rows of ``x`` ``[rows, width]`` that hold a NaN or an infinity."""
    # A sum of finite numbers that overflows only costs the closer look.
    if bool(x.sum().isfinite()):
        return np.empty(0, np.int64)
    return np.flatnonzero(~x.isfinite().all(1).numpy())
