"""``import llmrt``: the server's answers inside a Python program."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx2
import pytest

import llmrt
from llmrt import LLM, AsyncLLM, CompletionOutput, RequestError, SamplingParams
from support.server import Server, wait_for

GREEDY = SamplingParams(temperature=0, max_tokens=12)
ENDLESS = SamplingParams(max_tokens=4000, ignore_eos=True)
CAPITAL = "The capital of France is"
# Whose answer is far from any other at each token: kernels may differ between two processes.
CONVERSATION = [{"role": "user", "content": "What is 2+2?"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(kv_cache_memory=0.5) as shared:
        yield shared


def busy(llm: LLM | AsyncLLM) -> float:
    """Requests that the scheduler runs or holds, as the entry's metrics have it."""
    client = llm._engine.client()
    response, body = client.request("GET", "/metrics", b""), b""
    while not response.ended:
        body += response.take()
    lines = [line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#")]
    names = ("llmrt_num_requests_running", "llmrt_num_requests_waiting")
    counts = [float(value) for name, value in lines if name.split("{")[0] in names]
    assert len(counts) == 2
    return sum(counts)


def test_answers_are_those_of_the_server(llm: LLM, server: Server) -> None:
    fields = {"temperature": 0, "max_tokens": 12}
    with httpx2.Client(base_url=server.url, timeout=120) as http:
        text = http.post("/v1/completions", json={"prompt": CAPITAL, **fields}).json()
        chat = http.post("/v1/chat/completions", json={"messages": CONVERSATION, **fields}).json()
    [output] = llm.generate(CAPITAL, GREEDY, use_tqdm=False)
    assert output.text == text["choices"][0]["text"]
    assert (output.finish_reason, output.stop_reason, output.completion_tokens) == ("length", None, 12)
    assert output.prompt_tokens == text["usage"]["prompt_tokens"]
    [output] = llm.chat(CONVERSATION, GREEDY, use_tqdm=False)
    assert output.text == chat["choices"][0]["message"]["content"]


def test_many_prompts_keep_their_order(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [f"{number}," for number in range(40)]
    params = [SamplingParams(temperature=0, max_tokens=1 + number % 5) for number in range(40)]
    outputs = llm.generate(prompts, params)
    assert [output.completion_tokens for output in outputs] == [1 + number % 5 for number in range(40)]
    assert "tok/s" in capsys.readouterr().err
    assert outputs[7] == llm.generate([prompts[7]], params[7], use_tqdm=False)[0]
    assert len(llm.chat([CONVERSATION, CONVERSATION], GREEDY, use_tqdm=False)) == 2
    assert llm.generate([], GREEDY) == []


def test_more_prompts_than_may_be_open(llm: LLM) -> None:
    count = llm._engine.concurrency + 8
    outputs = llm.generate([[5]] * count, SamplingParams(max_tokens=1), use_tqdm=False)
    assert [output.completion_tokens for output in outputs] == [1] * count


def test_token_ids_and_stops(llm: LLM) -> None:
    ids = [504, 3575, 282, 4649, 314]
    stopping = SamplingParams(temperature=0, max_tokens=12, stop=["Paris"])
    by_ids = llm.generate([ids, ids], [stopping, GREEDY], use_tqdm=False)
    assert by_ids[1].prompt_token_ids == ids and len(by_ids[1].token_ids) == 12
    assert by_ids[1].outputs == [CompletionOutput(0, by_ids[1].text, by_ids[1].token_ids, None, "length", None)]
    assert (by_ids[1].finished, by_ids[1].prompt_tokens, by_ids[1].completion_tokens) == (True, 5, 12)
    [stopped] = llm.generate(CAPITAL, stopping, use_tqdm=False)
    assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == (" ", "stop", "Paris")
    assert llm.generate(ids, GREEDY, use_tqdm=False)[0].text == by_ids[1].text


def test_stream_is_the_same_text_in_pieces(llm: LLM) -> None:
    pieces = list(llm.stream(CAPITAL, GREEDY))
    assert len(pieces) > 1
    assert "".join(pieces) == llm.generate(CAPITAL, GREEDY, use_tqdm=False)[0].text
    assert "".join(llm.stream(CONVERSATION, GREEDY)) == llm.chat(CONVERSATION, GREEDY, use_tqdm=False)[0].text


def test_leaving_a_stream_aborts(llm: LLM) -> None:
    stream = llm.stream(CAPITAL, ENDLESS)
    next(stream)
    assert busy(llm) == 1
    stream.close()
    wait_for(lambda: busy(llm) == 0, "the request to be aborted")


def test_interrupting_generate_aborts(llm: LLM) -> None:
    def interrupt() -> None:
        wait_for(lambda: busy(llm) == 3, "the requests to run")
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate([CAPITAL] * 3, ENDLESS, use_tqdm=False)
    interrupter.join()
    wait_for(lambda: busy(llm) == 0, "the requests to be aborted")


def test_errors_are_those_of_the_server(llm: LLM) -> None:
    with pytest.raises(RequestError, match="stop_token_ids") as caught:
        llm.generate([CAPITAL, CAPITAL], [ENDLESS, SamplingParams(stop_token_ids=[10**6])], use_tqdm=False)
    assert (caught.value.status, caught.value.param) == (400, "stop_token_ids[0]")
    wait_for(lambda: busy(llm) == 0, "the other request to be cancelled")
    with pytest.raises(RequestError) as caught:
        list(llm.stream([1] * 100_000))
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(TypeError, match="a prompt is a text"):
        llm.generate([CAPITAL, 1.5], use_tqdm=False)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="2 sampling parameters for 1 prompts"):
        llm.generate(CAPITAL, [GREEDY, GREEDY])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": 3}, "`temperature` must be a number between 0 and 2, not 3."),
        ({"temperature": float("nan")}, "in `temperature`"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stop": object()}, "JSON"),
    ],
)
def test_sampling_params_are_checked_at_construction(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SamplingParams(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_num_seq": 4}, "did you mean max_num_seqs"),
        ({"max_num_seqs": 0}, "max_num_seqs must be between"),
        ({"port": 8000}, "no option port"),
        ({"dtype": 16}, "dtype must be text"),
    ],
)
def test_options_are_checked(options: dict[str, object], words: str) -> None:
    with pytest.raises(llmrt.ConfigError, match=words):
        LLM(**options)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(llmrt.ModelError, match="nowhere"):
        LLM(tmp_path / "nowhere.gguf")


def test_async_generate_grows_and_aborts() -> None:
    async def use(llm: AsyncLLM) -> None:
        outputs = [output async for output in llm.generate(CAPITAL, GREEDY)]
        assert len(outputs) > 2
        assert all(later.text.startswith(one.text) for one, later in pairwise(outputs))
        assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
        assert (outputs[-1].finish_reason, outputs[-1].completion_tokens) == ("length", 12)

        async def run(prompt: str) -> None:
            async for _ in llm.generate(prompt, ENDLESS):
                pass

        tasks = [asyncio.create_task(run(prompt)) for prompt in ("One", "Two")]
        left = llm.generate(CONVERSATION, ENDLESS)
        await anext(left)
        await asyncio.to_thread(wait_for, lambda: busy(llm) == 3, "the requests to run")
        await left.aclose()
        tasks[0].cancel()
        await asyncio.to_thread(wait_for, lambda: busy(llm) == 1, "the abort of two requests")
        with pytest.raises(RequestError) as caught:
            await anext(llm.generate(CAPITAL, SamplingParams(logit_bias={10**6: 1.0})))
        assert caught.value.status == 400
        await llm.close()
        with pytest.raises(RequestError, match="shutting down"):
            await tasks[1]
        with pytest.raises(RequestError, match="closed"):
            await anext(llm.generate(CAPITAL))

    llm = AsyncLLM(kv_cache_memory=0.5)
    asyncio.run(use(llm))


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].startswith("Z")
    except FileNotFoundError:
        return True


SCRIPT = """
    import sys
    import llmrt
    params = llmrt.SamplingParams(max_tokens=8, ignore_eos=True)
    # Nothing but the stream holds the LLM.
    stream = llmrt.LLM(engine=sys.argv[1], kv_cache_memory=0.5).stream("Hello", params)
    next(stream)
    print("ready", flush=True)
    sys.stdin.readline()
    print(len(list(stream)) > 0, flush=True)
"""


@pytest.mark.parametrize(("end", "engine"), [("exit", "torch"), ("kill", "mock")])
def test_a_script_without_a_guard_leaves_nothing(tmp_path: Path, end: str, engine: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    # Once as a file, once without one, as in a notebook.
    arguments = [str(script)] if end == "kill" else ["-c", script.read_text()]
    with subprocess.Popen(
        [sys.executable, *arguments, engine],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        children = children_of(process.pid)
        assert len(children) == 2
        if end == "kill":
            process.kill()
        else:
            process.stdin.close()
            assert process.stdout.readline() == "True\n", process.stderr.read()
            assert process.wait(30) == 0
            assert process.stderr.read() == ""
        wait_for(lambda: all(map(is_gone, children)), "the children to end")


def test_calls_fail_with_the_core_and_work_again_behind_its_successor() -> None:
    with LLM(engine="mock", mock_step_ms=5) as llm:
        stream = llm.stream(CAPITAL, ENDLESS)
        next(stream)
        os.kill(llm._engine._parts.children[0].process.pid, signal.SIGKILL)
        with pytest.raises(RequestError) as caught:
            list(stream)
        assert caught.value.status == 503
        with pytest.raises(RequestError, match="not running") as caught:
            llm.generate(CAPITAL)
        assert caught.value.status == 503
        wait_for(lambda: answers(llm), "a new core", 60)


def answers(llm: LLM) -> bool:
    try:
        return llm.generate(CAPITAL, SamplingParams(max_tokens=2), use_tqdm=False)[0].completion_tokens == 2
    except RequestError as error:
        assert error.status == 503
        return False


def test_a_core_that_dies_without_restarts_is_told_and_cleaned_up() -> None:
    with LLM(kv_cache_memory=0.5, restart_core=False) as llm:
        engine = llm._engine
        scheduler = engine._parts.children[0].process
        stream = llm.stream(CAPITAL, ENDLESS)
        next(stream)
        os.kill(scheduler.pid, signal.SIGKILL)
        with pytest.raises(RequestError) as caught:
            list(stream)
        assert caught.value.status == 503
        wait_for(lambda: not engine._thread.is_alive(), "the engine to end")
        with pytest.raises(RequestError, match="the scheduler was killed by SIGKILL"):
            llm.generate(CAPITAL)
        assert all(child.ended() for child in engine._parts.children)


def test_import_is_cheap_and_names_are_there() -> None:
    code = """
        import sys, llmrt
        assert not {"torch", "zmq", "tqdm", "llmrt._core"} & set(sys.modules)
        assert set(llmrt.__all__) <= set(dir(llmrt))
        for name in llmrt.__all__: getattr(llmrt, name)
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        _ = llmrt.Llm
