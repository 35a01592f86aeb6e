"""What a core and its entry nodes agree on before anything is sent."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from llmrt import config, model_source
from llmrt.config import Config, NodeOptions, SchedulerOptions
from llmrt.supervisor import node, nodes
from llmrt.supervisor.errors import StartError

SECRET = "0123456789abcdef"


def options(**given: Any) -> NodeOptions:
    return NodeOptions(core_listen="tcp://127.0.0.1:0", **given)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("tcp://10.0.0.1:7700", ("10.0.0.1", 7700)),
        ("tcp://core.example:0", ("core.example", 0)),
        ("tcp://[fd00::1]:7700", ("fd00::1", 7700)),
    ],
)
def test_addresses(text: str, read: tuple[str, int]) -> None:
    assert nodes.address(text, "--core") == read


@pytest.mark.parametrize(
    "text", ["10.0.0.1:7700", "tcp://10.0.0.1", "tcp://:7700", "tcp://a:65536", "tcp://fd00::1:7", ""]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(StartError, match=r"--core .*tcp://HOST:PORT"):
        nodes.address(text, "--core")


def test_a_secret_comes_from_one_place_and_is_long_enough(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"  {SECRET}\n")
    assert nodes.secret(options(core_secret=SECRET)) == SECRET
    assert nodes.secret(options(core_secret_file=str(file))) == SECRET
    with pytest.raises(StartError, match="not both"):
        nodes.secret(options(core_secret=SECRET, core_secret_file=str(file)))
    for bad in (options(), options(core_secret=SECRET[1:]), options(core_secret_file=str(tmp_path / "none"))):
        with pytest.raises(StartError, match="openssl rand"):
            nodes.secret(bad)
    file.write_bytes(b"\xff" * 32)
    with pytest.raises(StartError, match="no text"):
        nodes.secret(options(core_secret_file=str(file)))
    with pytest.raises(StartError, match="--core-listen"):
        nodes.check(NodeOptions(core_secret=SECRET))


def test_equal_tokenizers_have_one_fingerprint_and_others_another(tmp_path: Path) -> None:
    source = model_source.resolve(None)
    mine = nodes.fingerprint(source)
    assert mine == nodes.fingerprint(dataclasses.replace(source, name="another name"))
    tokenizer = tmp_path / "tokenizer.json"
    for text in ("{}", "{} "):
        tokenizer.write_text(text)
        other = nodes.fingerprint(dataclasses.replace(source, tokenizer=tokenizer))
        assert other != mine
        mine = other


def test_a_node_takes_over_what_the_core_decides() -> None:
    source = model_source.resolve(None)
    core = Config(scheduler=SchedulerOptions(max_num_seqs=7, schedule_policy="priority"))
    told = nodes.told(core, source, 512)
    merged = nodes.taken_over(Config(), told)
    assert (merged.scheduler.max_num_seqs, merged.scheduler.schedule_policy) == (7, "priority")
    assert (merged.model.served_model_name, merged.model.max_model_len) == (source.name, 512)
    for bad in ({}, {**told, "scheduler": {"max_num_seqs": 0, "schedule_policy": "fcfs"}}):
        with pytest.raises(StartError, match="another way"):
            nodes.taken_over(Config(), bad)


def test_a_node_has_the_options_of_a_front_door_alone() -> None:
    of_node = {each.name for each in config.node_options()}
    of_server = {each.name for each in config.server_options()}
    assert of_node - of_server == {"core"}
    assert {"port", "api_key", "ssl_certfile", "http2", "allowed_origins", "log_level", "model"} <= of_node
    decided = {name for _, name in nodes.DECIDED_BY_THE_CORE}
    assert not of_node & (decided | {"engine", "num_threads", "kv_cache_memory", "core_listen", "max_entry_nodes"})


def test_what_a_node_is_missing_is_said() -> None:
    with pytest.raises(StartError, match="--core is needed"):
        node.check(Config())
    with pytest.raises(StartError, match="openssl rand"):
        node.check(Config(nodes=NodeOptions(core="tcp://127.0.0.1:1")))
