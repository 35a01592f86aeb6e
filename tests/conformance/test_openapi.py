"""The server does what its OpenAPI document says, whatever is generated from it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from support.server import Server

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
PATIENCE = 30.0
"""Seconds within which every request is answered."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server("--engine", "mock", "--mock-step-ms", "0", "--mock-answer-tokens", "4", "--max-model-len", "512")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def api(server: Server) -> Any:
    loaded = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    loaded.config.update(base_url=server.url)
    return loaded


ROUTES = [
    ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"),
    ("/v1/models", "GET"),
    ("/v1/models/{model}", "GET"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
    ("/health", "GET"),
    ("/health_generate", "GET"),
    ("/ready", "GET"),
    ("/version", "GET"),
    ("/metrics", "GET"),
    ("/docs", "GET"),
]


def test_every_route_is_tried(api: Any) -> None:
    # The tool leaves out the document itself.
    operations = [result.ok() for result in api.get_all_operations()]
    assert [(operation.path, operation.method.upper()) for operation in operations] == ROUTES


@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_routes_keep_to_the_document(api: Any, path: str, method: str) -> None:
    for mode in schemathesis.GenerationMode:

        @given(case=api[path][method].as_strategy(generation_mode=mode))
        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        def keeps(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS, timeout=PATIENCE)

        # A route without a parameter has nothing that could be wrong.
        with contextlib.suppress(Unsatisfiable):
            keeps()


def test_the_server_is_well_afterwards(server: Server) -> None:
    """Runs behind the generated requests: none of them left anything behind."""
    server.wait_idle()
    assert server.get("/health").json() == {"status": "ok"}


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 2, "return_token_ids": True}),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "logprobs": 3, "echo": True}),
    ("/v1/completions", {"prompt": [1, 2, 3], "prompt_logprobs": 1, "return_token_ids": True, "stop": ["x"]}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_answers_and_events_are_of_their_schemas(server: Server, path: str, body: dict[str, Any]) -> None:
    document = server.get("/openapi.json").json()
    content = document["paths"][path]["post"]["responses"]["200"]["content"]

    def check(schema: dict[str, Any], value: Any) -> None:
        whole = {**schema, "components": document["components"]}
        jsonschema_rs.validator_for(whole).validate(value)

    answer = httpx2.post(f"{server.url}{path}", json={**body, "max_tokens": 5}, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    check(content["application/json"]["schema"], answer.json())

    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = {**body, "max_tokens": 5, "stream": True, "stream_options": options}
    events = httpx2.post(f"{server.url}{path}", json=streamed, timeout=PATIENCE).text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert len(events) > 4
    for event in events[:-2]:
        check(content["text/event-stream"]["schema"]["x-event-schema"], json.loads(event.removeprefix("data: ")))


def test_the_page_needs_no_network(server: Server) -> None:
    page = server.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert "/v1/chat/completions" in page.text.replace("&#x2f;", "/")
    assert "http:" not in page.text and "https:" not in page.text
