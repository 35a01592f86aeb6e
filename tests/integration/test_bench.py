"""``llmrt bench serve``: against a real server, and against one that misbehaves by script."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmrt.cli import bench
from support.certificates import Authority
from support.server import Server, wait_for
from support.sse_server import Reply, Request, Script, ScriptedServer, scripted_server


class Run:
    """One run in this process: exit code, report and what was printed."""

    def __init__(self, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> None:
        file = tmp_path / "report.json"
        file.unlink(missing_ok=True)
        self.code = bench.main(["serve", "--base-url", url, "--json", str(file), *flags])
        self.out, self.err = capsys.readouterr()
        self.report: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}

    def failures(self) -> dict[str, int]:
        return {each["kind"]: each["count"] for each in self.report["failures"]}


@pytest.fixture
def server(clear_server: Server) -> Server:
    return clear_server


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda url, *flags: Run(url, tmp_path, capsys, *flags)


async def answer(request: Request, reply: Reply) -> None:
    """Three chunks with text and a usage that counts four tokens."""
    await reply.head()
    for text in ("", "a", "b", "c"):
        await reply.token(text)
    await reply.event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}})
    await reply.event("[DONE]")
    await reply.end()


# --- A real server


@pytest.mark.parametrize("protocol", [(), ("--http2",)], ids=["http1", "http2"])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("load", [("--max-concurrency", "3"), ("--request-rate", "50")], ids=["closed", "open"])
def test_a_real_server_is_measured(
    server: Server, run: Any, protocol: tuple[str, ...], endpoint: str, load: tuple[str, ...]
) -> None:
    before = server.wait_idle()["llmrt_generation_tokens_total"]
    shape = ("--input-len", "20", "--output-len", "8", "--ignore-eos", "--num-prompts", "6", "--warmup", "1")
    watched = ("--pids", str(server.process.pid), "--pid-tree")
    done = run(server.url, "--endpoint", endpoint, *shape, *load, *protocol, *watched)
    report = done.report
    assert done.code == 0, done.err
    assert (report["completed"], report["failed"], report["cut"]) == (6, 0, None)
    assert (report["output_tokens"], report["token_source"]) == (48, "usage")
    assert server.wait_idle()["llmrt_generation_tokens_total"] - before == 7 * 8
    # A word is a token of this model, chat templates add some.
    assert 6 * 20 <= report["prompt_tokens"] <= 6 * 60
    assert report["itl"]["count"] == report["chunks"] - 6
    assert report["ttft"]["count"] == report["e2e"]["count"] == report["tpot"]["count"] == 6
    assert 0 < report["ttft"]["p50"] < report["e2e"]["p50"] <= report["duration_s"] * 1000
    assert report["protocol"] == ("HTTP/2" if protocol else "HTTP/1.1")
    if protocol:
        assert report["connections"] == 1
    if load[0] == "--max-concurrency":
        assert report["peak_concurrency"] == 3
        assert report["connections"] <= 3
        assert report["send_lag"] is None
    else:
        assert report["send_lag"]["count"] == 6
    names = {process["pid"] for process in report["processes"]}
    assert names >= {server.process.pid, *server.children()}
    assert report["server"]["cpu_us_per_output_token"] > report["client"]["cpu_us_per_output_token"] > 0


def test_tls_is_spoken_with_those_who_are_vouched_for(run: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    flags = ("--engine", "mock", "--mock-step-ms", "1", *authority.pair("server").flags())
    load = ("--num-prompts", "6", "--max-concurrency", "3", "--input-len", "4", "--output-len", "4", "--warmup", "0")
    server = Server(*flags, context=authority.context())
    try:
        for protocol in ((), ("--http2",)):
            done = run(server.url, *load, *protocol, "--ssl-ca-certs", str(authority.file))
            assert done.report["completed"] == 6, done.err
            assert done.report["protocol"] == ("HTTP/2" if protocol else "HTTP/1.1")
        # The system's authorities do not know this server.
        refused = run(server.url, *load, "--model", "any")
        assert (refused.code, refused.failures()) == (1, {"connect": 6})
        assert "UnknownIssuer" in refused.report["failures"][0]["message"]
    finally:
        assert server.stop() == 0, server.log


def test_streams_of_one_connection_are_bounded(server: Server, run: Any) -> None:
    flags = ("--http2", "--streams-per-connection", "2", "--max-concurrency", "6", "--num-prompts", "12")
    done = run(server.url, *flags, "--warmup", "0", "--input-len", "4", "--output-len", "4", "--ignore-eos")
    assert done.report["completed"] == 12
    assert done.report["connections"] == 3


def test_token_ids_are_prompts_of_exact_length(server: Server, run: Any) -> None:
    flags = ("--endpoint", "completions", "--token-ids", "1000:20000", "--input-len", "33", "--output-len", "2")
    done = run(server.url, *flags, "--num-prompts", "3", "--ignore-eos")
    assert done.report["prompt_tokens"] == 99, done.err


def test_an_error_of_a_real_server_names_its_reason(server: Server, run: Any) -> None:
    done = run(server.url, "--model", "absent", "--num-prompts", "2", "--warmup", "0", "--http2")
    assert done.code == 1
    assert done.failures() == {"404": 2}
    assert "absent" in done.report["failures"][0]["message"]
    assert "Failed: 404" in done.out


# --- A scripted one: what is measured


def test_times_and_tokens_are_right(run: Any) -> None:
    # The pauses are what is measured; none of them may turn out shorter.
    async def paced(request: Request, reply: Reply) -> None:
        await reply.head()
        await reply.token("")
        await asyncio.sleep(0.06)
        await reply.token()
        for _ in range(4):
            await asyncio.sleep(0.02)
            await reply.token()
        await asyncio.sleep(0.03)
        await reply.event("[DONE]")
        await reply.end()

    with scripted_server(paced) as server:
        report = run(server.url, "--num-prompts", "4", "--max-concurrency", "2", "--goodput", "e2e:100").report
    assert (report["completed"], report["token_source"], report["output_tokens"]) == (4, "chunks", 20)
    assert report["prompt_tokens"] is None and report["total_throughput"] is None
    # The role is no token: its chunk does not end the time to first token.
    assert report["ttft"]["min"] >= 59
    assert report["itl"]["count"] == 16 and report["itl"]["mean"] >= 19
    assert report["tpot"]["min"] >= 19
    assert report["e2e"]["min"] >= 169
    assert report["duration_s"] >= 2 * 0.169
    assert report["goodput"] == 0
    assert sum(report["timeline"]["chunks"]) == 20


def test_tokens_are_the_servers_where_it_says(run: Any) -> None:
    with scripted_server(answer) as server:
        done = run(server.url, "--num-prompts", "5", "--goodput", "e2e:60000")
    report = done.report
    assert (report["output_tokens"], report["chunks"], report["prompt_tokens"]) == (20, 15, 45)
    assert report["goodput"] == report["request_throughput"]
    assert "20 (by usage)" in done.out


def test_concurrency_and_connections(run: Any) -> None:
    async def together(request: Request, reply: Reply) -> None:
        # The first request is the warm-up, which comes alone.
        while len(server.requests) > 1 and server.peak < 3:
            await asyncio.sleep(0)
        await answer(request, reply)

    with scripted_server(together) as server:
        report = run(server.url, "--num-prompts", "20", "--max-concurrency", "3").report
    assert (server.peak, report["peak_concurrency"]) == (3, 3)
    assert report["completed"] == 20
    assert server.connections == report["connections"] <= 3


def test_connections_that_the_server_closes_are_replaced(run: Any) -> None:
    async def once(request: Request, reply: Reply) -> None:
        await answer(request, reply)
        reply.hang_up()

    async def announced(request: Request, reply: Reply) -> None:
        await reply.head(200, "text/event-stream", "connection: close")
        await reply.token()
        await reply.event("[DONE]")
        await reply.end()
        reply.hang_up()

    with scripted_server(announced) as server:
        report = run(server.url, "--num-prompts", "8", "--max-concurrency", "2").report
        assert report["completed"] == 8
    # Unannounced, a request may already be on its way: it fails as it would for any client, or succeeds.
    with scripted_server(once) as server:
        report = run(server.url, "--num-prompts", "8", "--request-rate", "40", "--warmup", "0").report
        assert report["completed"] + report["failed"] == 8
        assert report["completed"] >= 4


def test_prompts_follow_the_seed(run: Any) -> None:
    def bodies(seed: str) -> list[dict[str, Any]]:
        with scripted_server(answer) as server:
            flags = ("--num-prompts", "6", "--input-len", "30", "--output-len", "10", "--range-ratio", "0.5")
            assert run(server.url, *flags, "--seed", seed, "--max-concurrency", "1").code == 0
        return [request.body for request in server.requests]

    first, again, other = bodies("1"), bodies("1"), bodies("2")
    assert first == again and first != other
    assert len(first) == 7
    for body in first:
        assert 15 <= len(body["messages"][0]["content"].split()) <= 45
        assert 5 <= body["max_tokens"] <= 15
        assert body["stream_options"] == {"include_usage": True}
        assert "ignore_eos" not in body


def test_what_is_sent_is_what_the_flags_say(run: Any) -> None:
    flags = ("--header", "x-a: b", "--api-key", "secret", "--extra-body", '{"temperature": 0.5, "max_tokens": 3}')
    prefixes = ("--dataset", "shared-prefix", "--num-prefixes", "2", "--prefix-len", "5", "--suffix-len", "3")
    with scripted_server(answer) as server:
        done = run(f"{server.url}/api/v1/", *flags, *prefixes, "--num-prompts", "4", "--endpoint", "/v1/completions")
    assert done.code == 0 and done.report["model"] == "scripted"
    request = server.requests[-1]
    assert request.path == "/api/v1/completions"
    assert (request.headers["x-a"], request.headers["authorization"]) == ("b", "Bearer secret")
    assert request.headers["host"] == server.url.removeprefix("http://")
    assert (request.body["temperature"], request.body["max_tokens"]) == (0.5, 3)
    heads = {" ".join(each.body["prompt"].split()[:5]) for each in server.requests}
    assert len(heads) == 2
    assert len({each.body["prompt"] for each in server.requests}) == 5


def test_prompts_of_a_file(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    file.write_text(json.dumps({"prompt": "p", "max_tokens": 2}) + "\n" + json.dumps({"messages": messages}) + "\n")
    with scripted_server(answer) as server:
        done = run(server.url, "--dataset-path", str(file), "--warmup", "0", "--max-concurrency", "1")
    assert done.report["requests"] == 2
    first, second = (request.body for request in server.requests)
    assert (first["messages"], first["max_tokens"]) == ([{"role": "user", "content": "p"}], 2)
    assert (second["messages"], second["max_tokens"]) == (messages, 128)
    file.write_text('{"prompt": "p"}\n{"text": "p"}\n')
    with pytest.raises(SystemExit), scripted_server(answer) as server:
        run(server.url, "--dataset-path", str(file))
    assert not server.requests


# --- A scripted one: what goes wrong


async def busy(request: Request, reply: Reply) -> None:
    await reply.whole(429, json.dumps({"error": {"message": "queue full", "type": "x", "param": None, "code": None}}))


async def plain_error(request: Request, reply: Reply) -> None:
    await reply.whole(502, "<html>bad gateway</html>", "text/html")


async def cut_short(request: Request, reply: Reply) -> None:
    await reply.head()
    await reply.token()
    reply.hang_up()


async def no_done(request: Request, reply: Reply) -> None:
    await reply.head()
    await reply.token()
    await reply.end()


async def no_answer(request: Request, reply: Reply) -> None:
    reply.hang_up()


async def error_event(request: Request, reply: Reply) -> None:
    await reply.head()
    await reply.token()
    await reply.event({"error": {"message": "core died", "type": "server_error"}})
    await reply.event("[DONE]")
    await reply.end()


async def broken_json(request: Request, reply: Reply) -> None:
    await reply.head()
    await reply.event('{"choices": [')
    await reply.end()


async def no_stream(request: Request, reply: Reply) -> None:
    await reply.whole(200, json.dumps({"choices": []}))


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        (busy, "429", "queue full"),
        (plain_error, "502", "bad gateway"),
        (cut_short, "early_close", ""),
        (no_done, "early_close", "[DONE]"),
        (no_answer, "early_close", ""),
        (error_event, "error_event", "core died"),
        (broken_json, "garbage", '{"choices": ['),
        (no_stream, "garbage", "application/json"),
    ],
)
def test_failures_are_counted_by_kind(run: Any, script: Script, kind: str, message: str) -> None:
    with scripted_server(script) as server:
        done = run(server.url, "--num-prompts", "3", "--warmup", "0", "--max-concurrency", "1")
        assert done.code == 1
        assert (done.report["completed"], done.report["failed"]) == (0, 3)
        assert done.failures() == {kind: 3}
        assert message in done.report["failures"][0]["message"]
        assert f"Failed: {kind}" in done.out
        assert done.report["ttft"]["p50"] is None and done.report["server"] is None
        # With a warm-up the run does not begin.
        warm = run(server.url, "--num-prompts", "3", "--warmup", "1")
    assert warm.code == 1 and not warm.report
    assert f"warm-up request failed ({kind})" in warm.err and message in warm.err


def test_failures_do_not_hide_what_worked(run: Any) -> None:
    async def mixed(request: Request, reply: Reply) -> None:
        await (busy if len(server.requests) % 3 == 0 else answer)(request, reply)

    with scripted_server(mixed) as server:
        done = run(server.url, "--num-prompts", "9", "--warmup", "0", "--max-concurrency", "1")
    assert done.code == 0
    assert (done.report["completed"], done.failures()) == (6, {"429": 3})


def test_a_refused_connection_is_told(run: Any) -> None:
    with scripted_server(answer) as server:
        pass
    done = run(server.url, "--num-prompts", "2")
    assert done.code == 1 and not done.report
    assert server.url in done.err and "refused" in done.err
    done = run(server.url, "--num-prompts", "2", "--model", "m", "--warmup", "0")
    assert done.failures() == {"connect": 2}


async def silent(request: Request, reply: Reply) -> None:
    await reply.head()
    await reply.token()
    await asyncio.Event().wait()


def test_the_timeout_cuts_a_run(run: Any) -> None:
    with scripted_server(silent) as server:
        done = run(server.url, "--num-prompts", "5", "--max-concurrency", "2", "--warmup", "0", "--timeout", "2")
        assert done.code == 1
        report = done.report
        assert (report["cut"], report["unfinished"], report["not_sent"], report["chunks"]) == ("timeout", 2, 3, 2)
        assert 2 <= report["duration_s"] < 10
        assert "Cut: timeout" in done.out
        assert "within the timeout" in run(server.url, "--num-prompts", "5", "--timeout", "0.5").err


def test_an_interrupt_still_reports(tmp_path: Path) -> None:
    file = tmp_path / "report.json"

    def run_until_interrupted(server: ScriptedServer, *flags: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "llmrt.cli.bench", "serve", "--base-url", server.url, "--json", str(file)]
        process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wait_for(lambda: server.requests, "a request")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out

    with scripted_server(silent) as server:
        code, out = run_until_interrupted(server, "--num-prompts", "5", "--warmup", "0")
        assert (code, json.loads(file.read_text())["cut"]) == (130, "interrupted"), out
        assert "Cut: interrupted" in out
    with scripted_server(silent) as server:
        code, out = run_until_interrupted(server, "--num-prompts", "5", "--warmup", "1")
        assert code == 130
        assert "before the measurement" in out


# --- Flags


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ("--num-prompts 0", "--num-prompts"),
        ("--max-concurrency 0", "--max-concurrency"),
        ("--request-rate 0", "--request-rate"),
        ("--request-rate nan", "--request-rate"),
        ("--timeout -1", "--timeout"),
        ("--timeout inf", "--timeout"),
        ("--warmup -1", "--warmup"),
        ("--input-len 0", "--input-len"),
        ("--range-ratio 1", "--range-ratio"),
        ("--streams-per-connection 4", "--http2"),
        ("--pid-tree", "--pids"),
        ("--pids x", "--pids"),
        ("--dataset file", "--dataset-path"),
        ("--dataset file --dataset-path /nowhere/x.jsonl", "/nowhere/x.jsonl"),
        ("--prefix-len 5", "--prefix-len does not go with --dataset random"),
        ("--dataset shared-prefix --range-ratio 0.1", "--range-ratio"),
        ("--token-ids 5:5", "--token-ids"),
        ("--token-ids 5:9", "completions"),
        ("--goodput itl:5", "--goodput"),
        ("--extra-body [1]", "JSON object"),
        ('--extra-body {"stream":false}', "stream"),
        ("--header novalue", "--header"),
        ("--base-url ftp://localhost", "https://host:port"),
        ("--ssl-ca-certs ca.pem", "needs an https URL"),
        ("--base-url https://localhost --ssl-ca-certs /nowhere/ca.pem", "/nowhere/ca.pem"),
        ("--base-url localhost:8000", "--base-url"),
        ("--json /nowhere/x.json", "/nowhere"),
        ("--plot x.txt", ".png"),
        ("--unknown", "--unknown"),
    ],
)
def test_nonsense_is_refused(flags: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        bench.main(["serve", *flags.split()])
    assert refusal.value.code == 2
    assert word in capsys.readouterr().err


def test_a_process_that_is_not_there(run: Any) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with scripted_server(answer) as server:
        done = run(server.url, "--pids", str(ended.pid))
    assert done.code == 1 and f"process {ended.pid}" in done.err
    assert not server.requests


def test_a_picture_is_drawn(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "run.png"
    with scripted_server(answer) as server:
        assert run(server.url, "--num-prompts", "5", "--plot", str(file)).code == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_is_refused_before_the_run(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with scripted_server(answer) as server, pytest.raises(SystemExit):
        run(server.url, "--plot", str(tmp_path / "run.png"))
    assert not server.requests
    assert "pip install" in capsys.readouterr().err
