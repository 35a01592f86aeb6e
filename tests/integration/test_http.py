"""The HTTP surface as curl and raw clients see it: protocols, routes, bad input, request ids."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import httpx2
import pytest

from support.cell import CELL
from support.server import Server

from .conftest import MODEL

CHAT = "/v1/chat/completions"
GOOD: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}


def assert_openai_error(response: httpx2.Response, status: int) -> dict[str, Any]:
    """The response is an OpenAI error body with all four fields."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and (error["code"] is None or isinstance(error["code"], str))
    return error


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("protocol", ["--http1.1", "--http2-prior-knowledge"])
def test_curl_streams_a_sensible_sentence(server: Server, protocol: str) -> None:
    body = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 32,
        "temperature": 0,
        "stream": True,
    }
    if CELL.secure:
        protocol = protocol.removesuffix("-prior-knowledge")
    command = [
        "curl",
        "-sN",
        protocol,
        *CELL.curl,
        "-w",
        "%{http_version} %{http_code}",
        "-H",
        "content-type: application/json",
    ]
    done = subprocess.run(
        [*command, "-d", json.dumps(body), server.url + CHAT], capture_output=True, text=True, timeout=60, check=True
    )
    *lines, trailer = done.stdout.splitlines()
    assert trailer == ("1.1 200" if protocol == "--http1.1" else "2 200")
    events = [line.removeprefix("data: ") for line in lines if line]
    assert all(line.startswith("data: ") for line in lines if line)
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert "Paris" in text
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"messages": [',
        b'{"messages": [{"role": "user", "content": "hi"}]} trailing',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": Infinity}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1, "temperature": 0}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"messages": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"metadata": ' + b'{"a":' * 100 + b"1" + b"}" * 100 + b', "messages": [{"role": "user", "content": "x"}]}',
    ],
)
def test_bad_json_is_400(client: httpx2.Client, body: bytes) -> None:
    response = client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert_openai_error(response, 400)
    assert client.post(CHAT, json=GOOD).status_code == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_wrong_content_type_is_400(client: httpx2.Client, content_type: str) -> None:
    response = client.post(CHAT, content=json.dumps(GOOD), headers={"content-type": content_type})
    assert_openai_error(response, 400)


@pytest.mark.parametrize(
    ("path", "field", "status"),
    [
        (CHAT, "content-type: text/plain", 400),
        ("/v1/nothing", "content-type: application/json", 404),
        ("/health", "content-type: application/json", 405),
        (CHAT, "origin: http://page.example", 403),
    ],
)
def test_a_refusal_before_the_body_has_come_ends_no_connection(
    server: Server, path: str, field: str, status: int
) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{field}\r\ncontent-length: 2\r\n\r\n"
    with CELL.connect(server.host, server.port, "http/1.1") as connection, connection.makefile("rb") as answers:
        for _ in range(3):
            connection.sendall(head.encode())
            assert answers.readline().split()[1] == str(status).encode()
            fields = dict(line.lower().split(b": ") for line in iter(answers.readline, b"\r\n"))
            assert b"connection" not in fields
            assert json.loads(answers.read(int(fields[b"content-length"])))["error"]["message"]
            connection.sendall(b"{}")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"stop_token_ids": [49152]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"top_logprobs": 1_000_000}, "top_logprobs"),
        ({"n": 5_000_000}, "n"),
        ({"n": 0}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": list("abcde")}, "stop"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"tools": []}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_bad_fields_are_400_and_name_the_field(client: httpx2.Client, change: dict[str, Any], param: str) -> None:
    error = assert_openai_error(client.post(CHAT, json={**GOOD, **change}), 400)
    assert (error["param"] or "").startswith(param), error


@pytest.mark.parametrize("prompt", ["", [], [-1], [49152], ["a", 1], [1.5], None, {}, 5])
def test_bad_prompts_are_400(client: httpx2.Client, prompt: Any) -> None:
    error = assert_openai_error(client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}), 400)
    assert error["param"].startswith("prompt")


def test_null_means_unset(client: httpx2.Client) -> None:
    nulls = dict.fromkeys(["temperature", "top_p", "seed", "stop", "logit_bias", "n", "stream", "user", "tools"])
    response = client.post(CHAT, json={**nulls, "messages": GOOD["messages"], "max_tokens": 1, "stream_options": None})
    assert response.status_code == 200, response.text


def test_unknown_route_and_method(client: httpx2.Client) -> None:
    assert_openai_error(client.get("/v1/nothing"), 404)
    assert_openai_error(client.post("/v1/nothing", json={}), 404)
    response = client.get(CHAT)
    assert_openai_error(response, 405)
    assert "POST" in response.headers["allow"]


def test_unknown_model_is_404(client: httpx2.Client) -> None:
    error = assert_openai_error(client.post(CHAT, json={**GOOD, "model": "gpt-oss"}), 404)
    assert error["code"] == "model_not_found"
    assert_openai_error(client.get("/v1/models/gpt-oss"), 404)


def test_prompt_longer_than_the_context_is_400(client: httpx2.Client) -> None:
    response = client.post("/v1/completions", json={"prompt": [5] * 8193, "max_tokens": 1})
    assert assert_openai_error(response, 400)["code"] == "context_length_exceeded"


def test_oversized_body_is_413(client: httpx2.Client) -> None:
    response = client.post(CHAT, json={**GOOD, "user": "x" * (17 << 20)})
    assert_openai_error(response, 413)


@pytest.mark.parametrize(
    ("path", "content_type", "status"), [(CHAT, "text/plain", 400), ("/v1/nothing", "application/json", 404)]
)
def test_a_refusal_is_heard_though_its_body_still_comes(
    client: httpx2.Client, path: str, content_type: str, status: int
) -> None:
    response = client.post(path, content=b"x" * (4 << 20), headers={"content-type": content_type})
    assert_openai_error(response, status)


def test_request_id_is_made_or_echoed(client: httpx2.Client) -> None:
    assert client.get("/health").headers["x-request-id"]
    echoed = client.post(CHAT, json=GOOD, headers={"x-request-id": "trace-7"})
    assert echoed.headers["x-request-id"] == "trace-7"
    made = client.get("/health", headers={"x-request-id": "a" * 4000}).headers["x-request-id"]
    assert len(made) <= 128


def test_same_client_id_twice_at_once(server: Server) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def ask(number: int) -> str:
        body = {"prompt": f"The number {number} is", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        response = httpx2.post(f"{server.url}/v1/completions", json=body, headers={"x-request-id": "same"}, timeout=60)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["text"]

    alone = [ask(number) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, range(2))) == alone


def test_small_routes(client: httpx2.Client) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/ready").status_code == 200
    assert client.get("/version").json()["version"]
    models = client.get("/v1/models").json()
    assert models["object"] == "list" and models["data"][0]["id"] == MODEL
    assert models["data"][0]["max_model_len"] == 8192


def test_tokenize_and_back(client: httpx2.Client) -> None:
    text = "Grüße, 世界! 👩‍👩‍👧 42 <|im_start|>"
    tokens = client.post("/tokenize", json={"prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"]) and tokens["max_model_len"] == 8192
    assert client.post("/detokenize", json={"tokens": tokens["tokens"]}).json()["prompt"] == text
    chat = client.post("/tokenize", json={"messages": [{"role": "user", "content": "Hi"}]}).json()
    rendered = client.post("/detokenize", json={"tokens": chat["tokens"]}).json()["prompt"]
    assert rendered.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert_openai_error(client.post("/detokenize", json={"tokens": [-1]}), 400)
    assert_openai_error(client.post("/tokenize", json={}), 400)


def test_metrics_have_the_names_dashboards_know(server: Server, client: httpx2.Client) -> None:
    assert client.post(CHAT, json=GOOD).status_code == 200
    names = set(server.metrics())
    for name in [
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_preemptions_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "request_success_total",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
        "e2e_request_latency_seconds_count",
        "request_queue_time_seconds_count",
        "request_prefill_time_seconds_count",
        "request_decode_time_seconds_count",
    ]:
        assert f"llmrt_{name}" in names, name


def test_cached_tokens_are_counted(client: httpx2.Client) -> None:
    body = {"prompt": list(range(100, 164)), "max_tokens": 2, "temperature": 0}
    client.post("/v1/completions", json=body)
    usage = client.post("/v1/completions", json=body).json()["usage"]
    assert usage["prompt_tokens"] == 64
    assert usage["prompt_tokens_details"]["cached_tokens"] == 48
