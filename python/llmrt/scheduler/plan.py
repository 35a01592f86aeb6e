"""What the scheduler asks of the ranks: plain data that survives the wire.

A plan changes per-slot state (``freed``, ``starts``, ``pages``) and then names the rows of one step. The
ranks keep each slot's tokens, page table and sampling state on the device, so a plan carries no input ids:
row ``i`` computes tokens ``begin[i] : begin[i] + count[i]`` of slot ``slots[i]``, and where ``sample[i]``
is set the token after them is sampled and appended to the slot's tokens by the rank itself.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from llmrt.cache.pages import PAGE_SIZE as PAGE_SIZE  # what ranks and scheduler agree on
from llmrt.wire import Sampling


class SlotStart(msgspec.Struct, array_like=True):
    """A request enters (or, preempted, re-enters) a slot.

    ``tokens`` is a u32 column of every token it has: ``prompt_tokens`` of prompt, then generated ones
    (they count for penalties). ``sampling.seed`` is always set.
    """

    slot: int
    prompt_tokens: int
    tokens: bytes
    sampling: Sampling


class PageGrant(msgspec.Struct, array_like=True):
    """``pages`` (u32 column) are appended to the page table of ``slot``; page 0 is never granted."""

    slot: int
    pages: bytes


class StepPlan(msgspec.Struct, array_like=True):
    """One step. ``freed`` is applied first, then ``starts``, then ``grants``, then the rows are computed.

    A slot may be freed and started by one plan. Freeing a free slot does nothing: after a failed step the
    scheduler frees every slot that the failed plans touched. ``grants`` of a start may name pages that other
    slots read too (a shared prefix): their tokens lie before ``begin`` and are never written again.

    ``slots``, ``begin`` and ``count`` are u32 columns of one value a row, ``sample`` has one byte a row.
    A slot stands in at most one row.
    """

    step: int
    freed: list[int]
    starts: list[SlotStart]
    grants: list[PageGrant]
    slots: bytes
    begin: bytes
    count: bytes
    sample: bytes


class RowLogprobs(msgspec.Struct, array_like=True):
    """Log probabilities of consecutive tokens of a row, as in :class:`llmrt.wire.Logprobs`.

    ``chosen`` (f32 column) has one value a token, ``top_ids`` (u32) and ``top_logprobs`` (f32) have ``top`` a token.
    """

    row: int
    top: int
    chosen: bytes
    top_ids: bytes
    top_logprobs: bytes


class StepResult(msgspec.Struct, array_like=True):
    """``tokens`` (u32 column): the sampled token of each row with ``sample`` set, in row order.

    ``failed``: the rows, counted among all of the plan, whose numbers were not finite. Neither their tokens nor the
    pages they have written mean anything; other rows are not touched by them.

    ``logprobs``: of the sampled tokens of rows whose request asked, in row order, rows counted among all of the plan.
    ``prompt_logprobs``: the same of the prompt tokens that stand behind each one that the row computed.
    """

    step: int
    tokens: bytes
    failed: list[int] = []
    logprobs: list[RowLogprobs] = []
    prompt_logprobs: list[RowLogprobs] = []


class ExecutorInfo(msgspec.Struct, array_like=True):
    """What a loaded executor offers: pages of KV memory (page 0, the null page, included) and slots."""

    num_pages: int
    page_size: int
    num_slots: int
    max_model_len: int
    vocab_size: int


class Executor(Protocol):
    """Runs plans on the ranks. ``collect`` returns results in the order of ``launch``.

    An executor that overlaps may hold several launched plans; the inline one computes in ``launch``.
    """

    def load(self) -> ExecutorInfo:
        """Loads weights and takes memory. Raises on anything that makes serving impossible."""

    def launch(self, plan: StepPlan) -> None:
        """Starts a step."""

    def collect(self) -> StepResult:
        """Waits for the oldest launched step."""

    def recover(self) -> bool:
        """After ``launch`` or ``collect`` raised: drops every launched plan. True when later plans can run."""

    def close(self) -> None:
        """Gives memory and processes back."""


def encode(plan: StepPlan | StepResult) -> bytes:
    """Bytes of a plan or result."""
    return msgspec.msgpack.encode(plan)


def decode_plan(raw: bytes) -> StepPlan:
    """Reads a plan. Raises ``msgspec.DecodeError`` or ``msgspec.ValidationError``."""
    return msgspec.msgpack.decode(raw, type=StepPlan)


def decode_result(raw: bytes) -> StepResult:
    """Reads a result. Raises ``msgspec.DecodeError`` or ``msgspec.ValidationError``."""
    return msgspec.msgpack.decode(raw, type=StepResult)
