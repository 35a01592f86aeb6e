"""``llmrt chat`` at a terminal and in a pipe, against a running server and one of its own."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from llmrt import model_source
from llmrt.supervisor import facts
from support.certificates import Authority
from support.server import Server, wait_for
from support.tty import Tty

CHAT = [sys.executable, "-m", "llmrt.cli.main", "chat"]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("LLMRT_", "OPENAI_"))},
    "TERM": "dumb",
    "LLMRT_KV_CACHE_MEMORY": "0.2",
}
QUESTION = "What is the capital of France?"


def piped(*flags: str, prompt: str = QUESTION, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**ENVIRONMENT, **variables}
    return subprocess.run([*CHAT, *flags], input=prompt, capture_output=True, text=True, timeout=120, env=environment)


@contextmanager
def terminal(*flags: str) -> Iterator[Tty]:
    tty = Tty([*CHAT, *flags], ENVIRONMENT)
    try:
        yield tty
    finally:
        tty.close()


def api_answer(server: Server, messages: list[dict[str, str]]) -> str:
    body = {"messages": messages, "temperature": 0, "max_tokens": 12}
    answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).json()
    return answer["choices"][0]["message"]["content"]


GREEDY = ("--temperature", "0", "--max-tokens", "12")


@pytest.fixture
def server(clear_server: Server) -> Server:
    return clear_server


def test_a_pipe_gets_the_answer_and_nothing_else(server: Server) -> None:
    done = piped("--url", server.url, *GREEDY, "--system", "Be brief.")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == api_answer(server, messages).rstrip("\n") + "\n"


def test_a_server_with_a_key_gets_it() -> None:
    authorization = {"authorization": "Bearer sesame-open"}
    server = Server("--engine", "mock", "--api-key", "sesame-open", clear=True, headers=authorization)
    try:
        talk = ("--url", server.url, "--max-tokens", "2")
        for done in (
            piped(*talk, "--api-key", "sesame-open", LLMRT_API_KEY="wrong"),
            piped(*talk, LLMRT_API_KEY="sesame-open,another", OPENAI_API_KEY="wrong"),
            piped(*talk, OPENAI_API_KEY="sesame-open"),
        ):
            assert (done.returncode, done.stderr) == (0, "")
        without, wrong, odd = piped(*talk), piped(*talk, "--api-key", "wrong"), piped(*talk, "--api-key", "a\nb")
        assert "--api-key" in without.stderr and "An API key is needed" in without.stderr
        assert "The API key is wrong" in wrong.stderr
        assert "visible ASCII" in odd.stderr
        assert {each.returncode for each in (without, wrong, odd)} == {1}
    finally:
        assert server.stop() == 0, server.log


def test_what_is_meant_for_another_server_does_not_reach_its_own(own_model: Path, tmp_path: Path) -> None:
    pair = Authority(tmp_path).pair("server")
    file = tmp_path / "llmrt.yaml"
    file.write_text("engine: mock\napi_key_file: /none\nssl_client_ca: /none\nroot_path: /llm\n")
    meant_for_others = {
        "LLMRT_API_KEY": "sesame-open",
        "LLMRT_ADMIN_API_KEY": "sesame-root",
        "LLMRT_UDS": str(tmp_path / "socket"),
        "LLMRT_SSL_CERTFILE": str(pair.certfile),
        "LLMRT_SSL_KEYFILE": str(pair.keyfile),
        "LLMRT_CORE_LISTEN": "tcp://127.0.0.1:0",
        "LLMRT_HOST": "192.0.2.1",
        "LLMRT_CONFIG": str(file),
    }
    done = piped(str(own_model), "--max-tokens", "2", "--start-timeout", "30", **meant_for_others)
    assert (done.returncode, done.stderr) == (0, "")
    assert own_servers() == []


def test_a_reader_that_leaves_ends_the_answer(server: Server) -> None:
    flags = ["--url", server.url, "--set", "ignore_eos=true", "--max-tokens", "4000"]
    chat = subprocess.Popen(
        [*CHAT, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    )
    assert chat.stdin is not None and chat.stdout is not None and chat.stderr is not None
    chat.stdin.write(QUESTION.encode())
    chat.stdin.close()
    assert chat.stdout.read(1)
    chat.stdout.close()
    assert chat.wait(60) == 1
    assert chat.stderr.read() == b""
    chat.stderr.close()
    server.wait_idle()


def test_errors_say_what_to_do(server: Server, tmp_path: Path) -> None:
    nobody = piped("--url", "http://127.0.0.1:9")
    assert nobody.returncode == 1
    assert "no server answers at http://127.0.0.1:9" in nobody.stderr and "start one" in nobody.stderr
    wrong = piped("--url", server.url, "gpt-9")
    assert wrong.returncode == 1
    assert "has no model 'gpt-9'; it has SmolLM2-135M-Instruct" in wrong.stderr
    missing = piped(str(tmp_path / "none.gguf"))
    assert missing.returncode == 1
    assert "the server did not start" in missing.stderr and "none.gguf does not exist" in missing.stderr
    assert "the input is empty" in piped("--url", server.url, prompt=" \n").stderr
    assert "is not the URL of a server" in piped("--url", "localhost:8000").stderr
    refused = piped("--url", server.url, "--temperature", "9")
    assert refused.returncode == 1 and "refused (400)" in refused.stderr and "temperature" in refused.stderr
    assert all("Traceback" not in each.stderr for each in (nobody, wrong, missing, refused))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('{"error":{"message":"The model is not running."}}', "is not ready: The model is not running."),
        ("<html>busy</html>", "is not ready: <html>busy</html>"),
    ],
)
def test_a_server_that_is_down_is_named_so(body: str, complaint: str) -> None:
    class Down(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            models = self.path == "/v1/models"
            self.send_response(200 if models else 503)
            self.end_headers()
            self.wfile.write(b'{"data":[{"id":"m"}]}' if models else body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Down) as fake:
        threading.Thread(target=fake.serve_forever).start()
        done = piped("--url", f"http://127.0.0.1:{fake.server_port}")
        fake.shutdown()
    assert done.returncode == 1 and complaint in done.stderr


def test_a_conversation(server: Server, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    with terminal("--url", server.url, *GREEDY) as tty:
        tty.expect(r"SmolLM2-135M-Instruct at http://")
        tty.expect(">>> ")
        tty.type("/stats\r")
        tty.expect("there was no answer yet")
        tty.type(QUESTION + "\r")
        stats = tty.expect(r"\[TTFT \d+ ms, [\d.]+ tok/s, (\d+) tokens, prompt (\d+)( \(\d+ cached\))?.*\]\n")
        tty.expect(">>> ")
        # The conversation goes on, over several lines.
        tty.type("Say it\\\rin other\\\rwords.\r")
        again = tty.expect(r"\[TTFT .* prompt (\d+)")
        assert int(again[1]) > int(stats[2]) + int(stats[1])
        tty.expect(">>> ")
        tty.type(f"/save {saved}\r")
        tty.expect("saved to")
        tty.type(f"/save {saved}\r")
        tty.expect("File exists")
        tty.type("/stats\r")
        tty.expect(r"answers +2\n")
        tty.type("/dance\r")
        tty.expect("there is no command /dance")
        tty.type("/system Be brief.\r")
        tty.expect("the system prompt is set")
        tty.type('"""Two\rlines"""\r')
        tty.expect(r"\[TTFT .*\]\n>>> ")
        tty.type(f"/save {saved}.2\r")
        tty.expect("saved to")
        tty.type("/reset\r")
        tty.expect("forgotten")
        tty.type("/quit\r")
        assert tty.ended() == 0
    messages = json.loads(saved.read_text())["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "user", "assistant"]
    assert messages[0]["content"] == QUESTION and messages[2]["content"] == "Say it\nin other\nwords."
    assert messages[1]["content"] == api_answer(server, messages[:1])
    assert messages[3]["content"] == api_answer(server, messages[:3])
    second = json.loads(Path(f"{saved}.2").read_text())["messages"]
    assert [each["role"] for each in second] == ["system", "user", "assistant"]
    assert second[1]["content"] == "Two\nlines"


def test_an_interrupt_ends_the_answer_alone(server: Server) -> None:
    server.wait_idle()
    with terminal("--url", server.url, "--set", "ignore_eos=true", "--max-tokens", "4000") as tty:
        tty.expect(">>> ")
        tty.type("Tell a long story.\r")
        tty.expect(r"Tell a long story\.\n.+")
        wait_for(lambda: server.metrics()["llmrt_num_requests_running"] == 1, "the answer to run")
        tty.type("\x03")
        tty.expect(r"cancelled\]")
        server.wait_idle()
        tty.expect(">>> ")
        # At the prompt an interrupt drops what was typed.
        tty.type("half a ques\x03")
        tty.expect(">>> ")
        tty.type("\x04")
        assert tty.ended() == 0


@pytest.fixture
def own_model(tmp_path: Path) -> Path:
    """The default model under a name that no running server can have."""
    path = tmp_path / "own-model.gguf"
    path.symlink_to(model_source.default_model_path())
    return path


def own_servers() -> list[facts.Facts]:
    return [server for server in facts.running() if server.model == "own-model"]


def test_without_a_server_one_is_started_and_stopped(own_model: Path) -> None:
    done = piped(str(own_model), *GREEDY)
    assert done.returncode == 0, done.stderr
    assert re.search("Paris", done.stdout) and done.stderr == ""
    assert own_servers() == []


def test_a_killed_chat_takes_its_server_along(own_model: Path) -> None:
    with terminal(str(own_model)) as tty:
        tty.expect("own-model at http://")
        (found,) = own_servers()
        os.kill(tty.pid, signal.SIGKILL)
        assert tty.ended() == -signal.SIGKILL
    wait_for(lambda: own_servers() == [], "the server to end")
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(found.url)
