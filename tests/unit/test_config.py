"""The configuration: one tree, three sources above the defaults, and a form that can be read back."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from llmrt import config
from llmrt.cli import serve
from llmrt.config import Config, ConfigError, EntryOptions, ModelOptions, Option, SchedulerOptions


def values(option: Option) -> st.SearchStrategy[Any]:
    """Every value that an option may take."""
    if option.many:
        return st.lists(values(dataclasses.replace(option, many=False)), max_size=3).map(tuple)
    if option.choices is not None:
        some: st.SearchStrategy[Any] = st.sampled_from(option.choices)
    elif option.kind is bool:
        some = st.booleans()
    elif option.secret:
        visible = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
        some = st.text(visible, min_size=1) | st.builds("{} {}".format, st.text(visible, min_size=1), visible)
    elif option.kind is str:
        some = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
    else:
        assert option.between is not None, f"{option.flag} is a number without bounds"
        low, high = option.between
        some = st.integers(int(low), int(high)) if option.kind is int else st.floats(low, high)
    return st.none() | some if option.optional else some


@st.composite
def configs(draw: st.DrawFn) -> Config:
    parts = {}
    for group in dataclasses.fields(Config):
        mine = [option for option in config.options() if option.group == group.name]
        parts[group.name] = type(group.default)(**{option.name: draw(values(option)) for option in mine})
    return Config(**parts)


def from_file(text: str, name: str = "server.yaml", **sources: Any) -> config.Resolved:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        return config.resolve(sources.get("flags", {}), sources.get("environment", {}), str(path))


def parse(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    config.add_flags(parser)
    return vars(parser.parse_args(arguments))


@settings(deadline=None)
@given(configs())
def test_the_yaml_form_reads_back_as_the_same_configuration(wanted: Config) -> None:
    plain = config.to_yaml(wanted)
    assert from_file(plain).config == wanted
    public = dataclasses.replace(
        wanted,
        entry=dataclasses.replace(wanted.entry, api_key=(), admin_api_key=()),
        tls=dataclasses.replace(wanted.tls, ssl_keyfile_password=None),
        nodes=dataclasses.replace(wanted.nodes, core_secret=None),
    )
    commented = config.to_yaml(public, {option.name: "a # b: 'c'\n" for option in config.options()})
    assert from_file(commented).config == public


@settings(deadline=None)
@given(st.data())
def test_flag_variable_and_file_mean_the_same(data: st.DataObject) -> None:
    option = data.draw(st.sampled_from([each for each in config.options() if each.kind is not bool]))
    value = data.draw(values(option).filter(lambda value: value not in (None, ()) and not str(value).startswith("-")))
    text = str(value)
    if option.many:
        value = tuple(each.replace(",", ";") for each in value)
        text = ",".join(value)
        assume(not text.startswith("-"))
    spelling = data.draw(st.sampled_from(option.spellings))
    key = spelling.removeprefix("--").replace("-", "_")
    by_flag = config.resolve(parse(spelling, text), {})
    by_variable = config.resolve({}, {f"LLMRT_{key.upper()}": text})
    by_file = from_file(config.to_yaml(by_flag.config))
    assert by_flag.config == by_variable.config == by_file.config
    assert by_flag.config.get(option) == value


def test_names_are_unique_in_the_whole_tree() -> None:
    keys = [key for option in config.options() for key in option.keys]
    assert len(keys) == len(set(keys))
    assert not set(keys) & {"config", "check", "dump_config", "version", "help", "positional_model"}


def test_defaults_are_in_range_and_every_number_has_one() -> None:
    Config().check()
    for option in config.options():
        assert (option.between is not None) == (option.kind in (int, float)), option.flag


def test_a_flag_wins_over_a_variable_over_the_file_over_the_default() -> None:
    text = "entry: {port: 1, max_body_mb: 1, max_connections: 1}"
    environment = {"LLMRT_PORT": "2", "LLMRT_MAX_BODY_MB": "2"}
    found = from_file(text, flags=parse("--port", "3"), environment=environment)
    entry = found.config.entry
    assert (entry.port, entry.max_body_mb, entry.max_connections) == (3, 2, 1)
    assert entry.host == EntryOptions().host
    assert found.sources["port"] == "flag --port"
    assert found.sources["max_body_mb"] == "variable LLMRT_MAX_BODY_MB"
    assert found.sources["max_connections"].endswith("server.yaml:1 entry.max_connections")
    assert found.sources["host"] == "default"


def test_switches() -> None:
    assert not config.resolve(parse("--no-enable-prefix-caching"), {}).config.scheduler.enable_prefix_caching
    assert not config.resolve({}, {"LLMRT_ENABLE_PREFIX_CACHING": "off"}).config.scheduler.enable_prefix_caching
    flags = parse("--enable-prefix-caching")
    assert from_file("enable_prefix_caching: no", flags=flags).config.scheduler.enable_prefix_caching
    assert not from_file("enable_prefix_caching: no").config.scheduler.enable_prefix_caching


def test_both_spellings_everywhere() -> None:
    assert config.resolve(parse("--context-length", "99"), {}).config.model.max_model_len == 99
    assert config.resolve({}, {"LLMRT_MAX_RUNNING_REQUESTS": "9"}).config.scheduler.max_num_seqs == 9
    both = from_file("context-length: 99\nscheduler: {max_running_requests: 9}")
    assert (both.config.model.max_model_len, both.config.scheduler.max_num_seqs) == (99, 9)


def test_the_model_is_a_group_and_an_option() -> None:
    assert from_file("model: a.gguf").config.model == ModelOptions(model="a.gguf")
    assert from_file("model: {model: a.gguf}").config.model == ModelOptions(model="a.gguf")
    assert from_file("model:\nentry:\n").config == Config()
    assert from_file("").config == Config()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max_num_seq: 4", "server.yaml:1: max_num_seq is unknown; did you mean max_num_seqs?"),
        ("\nentry:\n  prot: 4", "server.yaml:3: entry.prot is unknown; did you mean entry.port?"),
        ("entry: {max_num_seqs: 4}", "entry.max_num_seqs is unknown"),
        ("port: many", "server.yaml:1: port must be a whole number, not 'many'"),
        ("port: 1.5", "port must be a whole number, not 1.5"),
        ("port: true", "port must be a whole number, not True"),
        ("port: [1]", "port must be a whole number, not [1]"),
        ("port: null", "port must be a whole number, not None"),
        ("port: 70000", "server.yaml:1: port must be between 0 and 65535, not 70000"),
        ("stat_interval: .nan", "stat_interval must be between"),
        ("host: 127", "host must be text, not 127; put it in quotes"),
        ("dtype: int4", "dtype must be one of auto, float32, bfloat16, not 'int4'"),
        ("enable_prefix_caching: 3", "enable_prefix_caching must be true or false"),
        ("port: 1\nport: 2", "server.yaml:2: port is set twice"),
        ("port: 1\nentry: {port: 2}", "server.yaml:2: entry.port is set already by"),
        ("max_num_seqs: 1\nmax_running_requests: 2", "max_running_requests is set already by"),
        ("\nentry: 5", "server.yaml:2: entry is a group and must hold keys"),
        ("scheduler: [max_num_seqs]", "server.yaml:1: scheduler is a group and must hold keys"),
        ("1: 2", "server.yaml:1: a key must be the name of an option"),
        ("- port", "must hold keys with values, not list"),
        ("a: [", "is not YAML"),
        ("port: !!python/object/apply:os.getcwd []", "is not YAML"),
        ("[" * 5000, "is not YAML"),
        ("port: \x01", "is not YAML"),
    ],
)
def test_a_wrong_file_is_told_where_and_why(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_file(text)
    assert complaint in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config .*none.yaml: No such file"):
        config.resolve({}, {"LLMRT_CONFIG": str(tmp_path / "none.yaml")})


def test_wrong_variables() -> None:
    with pytest.raises(ConfigError, match="variable LLMRT_PORT must be a whole number, not 'x'"):
        config.resolve({}, {"LLMRT_PORT": "x"})
    with pytest.raises(ConfigError, match="LLMRT_MAX_NUM_SEQS and LLMRT_MAX_RUNNING_REQUESTS are the same option"):
        config.resolve({}, {"LLMRT_MAX_NUM_SEQS": "1", "LLMRT_MAX_RUNNING_REQUESTS": "1"})
    found = config.resolve({}, {"LLMRT_PROT": "1", "LLMRT_HOST": "", "OTHER": "1"})
    assert found.config == Config()
    assert found.warnings == ("variable LLMRT_PROT is unknown and ignored; did you mean LLMRT_PORT?",)


def test_a_tree_made_in_code_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="--max-num-seqs must be between 1 and 65536, not 0"):
        Config(scheduler=SchedulerOptions(max_num_seqs=0)).check()


def test_prompts_may_be_remembered_or_not() -> None:
    assert config.resolve({}, {}).config.entry.tokenizer_cache_mb == 16
    assert config.resolve(parse("--tokenizer-cache-mb", "0"), {}).config.entry.tokenizer_cache_mb == 0
    with pytest.raises(ConfigError, match="--tokenizer-cache-mb must be between 0 and 65536, not -1"):
        Config(entry=EntryOptions(tokenizer_cache_mb=-1)).check()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LLMRT_")}
    command = [sys.executable, "-m", "llmrt.cli.serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**clean, **environment}, timeout=60)


def test_help_has_every_flag_below_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serve.main(["--help"])
    text = capsys.readouterr().out
    for option in config.options():
        section = text[text.index(f"\n{option.title}:") :]
        for spelling in option.spellings:
            assert spelling in section.split("\n\n")[0]


def test_check_prints_what_a_server_would_use(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("scheduler:\n  max_num_seqs: 3\n")
    done = run("--check", "--config", str(file), "--context-length", "512", LLMRT_PORT="9", LLMRT_PROT="1")
    assert done.returncode == 0, done.stderr
    assert "at most 512 tokens per request" in done.stdout
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert f"max_num_seqs: 3 # {file}:2 scheduler.max_num_seqs" in lines
    assert "port: 9 # variable LLMRT_PORT" in lines
    assert "max_model_len: 512 # flag --max-model-len" in lines
    assert "did you mean LLMRT_PORT?" in done.stderr
    assert from_file(done.stdout).config == Config(
        model=ModelOptions(max_model_len=512),
        entry=EntryOptions(port=9),
        scheduler=SchedulerOptions(max_num_seqs=3),
    )


@pytest.mark.parametrize("key", ["", " ", " key", "key ", "two\nlines", "tab\t", "schlüssel", "\x7f"])
def test_keys_that_no_client_could_send_are_refused(key: str) -> None:
    complaint = "must be one or more visible ASCII characters, without spaces at the ends"
    with pytest.raises(ConfigError, match=f"--api-key {complaint}"):
        Config(entry=EntryOptions(api_key=(key,))).check()
    with pytest.raises(SystemExit):
        parse("--api-key", key)
    with pytest.raises(ConfigError, match=f"server.yaml:1: api_key {complaint}"):
        from_file(f"api_key: {json.dumps(key)}")
    if key:
        with pytest.raises(ConfigError, match=f"variable LLMRT_API_KEY {complaint}"):
            config.resolve({}, {"LLMRT_API_KEY": key})


@pytest.mark.parametrize("text", ["api_key: 86420", "api_key: [86420]", "api_key: '86420 '"])
def test_complaints_do_not_tell_the_key(text: str) -> None:
    with pytest.raises(ConfigError, match="api_key must be") as error:
        from_file(text)
    assert "86420" not in str(error.value)
    assert "86420" not in repr(Config(entry=EntryOptions(api_key=("86420",))))


def test_several_keys_come_by_flags_commas_and_lists() -> None:
    flags = parse("--api-key", "a", "--api-key", "b,c")
    assert config.resolve(flags, {"LLMRT_API_KEY": "x"}).config.entry.api_key == ("a", "b", "c")
    assert config.resolve({}, {"LLMRT_API_KEY": "a,b"}).config.entry.api_key == ("a", "b")
    assert from_file("api_key: a,b").config.entry.api_key == ("a", "b")
    assert from_file("api_key: [a, 'b,c']").config.entry.api_key == ("a", "b,c")
    for bad in ("a,,b", "a, b"):
        with pytest.raises(ConfigError, match="LLMRT_API_KEY must be one or more visible"):
            config.resolve({}, {"LLMRT_API_KEY": bad})


def test_check_looks_into_the_file_of_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sesame rpm=none\n")
    checked = run("--check", "--engine", "mock", "--api-key-file", str(keys))
    assert checked.returncode == 2 and f"--api-key-file {keys}:1: rpm must be a whole number" in checked.stderr
    assert "sesame" not in checked.stdout + checked.stderr
    keys.write_text("sesame rpm=1 priority=1\n")
    checked = run("--check", "--engine", "mock", "--api-key-file", str(keys))
    assert checked.returncode == 2 and "needs --schedule-policy priority" in checked.stderr
    flags = ("--schedule-policy", "priority", "--api-key-file", str(keys))
    assert run("--check", "--engine", "mock", *flags).returncode == 0


def test_check_hides_the_key_and_the_dump_has_it() -> None:
    checked = run("--check", LLMRT_API_KEY="open sesame")
    assert checked.returncode == 0, checked.stderr
    assert "sesame" not in checked.stdout + checked.stderr
    # What is hidden must not become the key of whoever feeds it back.
    with pytest.raises(ConfigError, match="api_key must be text"):
        from_file(checked.stdout)
    dumped = run("--dump-config", LLMRT_API_KEY="open sesame")
    assert from_file(dumped.stdout).config.entry.api_key == ("open sesame",)
    empty = run("--check", "--api-key", "")
    assert empty.returncode == 2 and "--api-key: must be one or more visible ASCII characters" in empty.stderr


def test_check_refuses_what_could_not_start(tmp_path: Path) -> None:
    missing = run("--check", "--model", str(tmp_path / "none.gguf"))
    assert missing.returncode == 2 and "does not exist" in missing.stderr
    faults = run("--check", "--engine", "mock", "--mock-faults", "dance")
    assert faults.returncode == 2 and "--mock-faults" in faults.stderr
    long = run("--check", "--max-model-len", "9000")
    assert long.returncode == 2 and "--max-model-len 9000 is more than the model's 8192" in long.stderr


def test_dumped_configuration_is_a_file_for_the_next_start(tmp_path: Path) -> None:
    first = run("--dump-config", 'a: "model" #1', "--port", "0", "--no-enable-prefix-caching")
    assert first.returncode == 0, first.stderr
    file = tmp_path / "server.yaml"
    file.write_text(first.stdout)
    again = run("--dump-config", LLMRT_CONFIG=str(file))
    assert again.stdout == first.stdout
    assert run("--dump-config", "--port", "x").returncode == 2
