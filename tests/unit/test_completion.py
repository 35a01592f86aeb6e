"""Completion scripts, as the shells themselves read them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from llmrt import config
from llmrt.cli import completion, main

SHELLS = sorted(completion.SHELLS)


def script(shell: str) -> str:
    return completion.SHELLS[shell](completion.completions())


def complete(*words: str) -> list[str]:
    """What bash offers when the last of ``words`` is being typed."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _llmrt; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", f"{script('bash')}\n{ask}"], capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_flags_and_values() -> None:
    assert complete("llmrt", "do") == ["doctor"]
    assert set(main.COMMANDS) <= set(complete("llmrt", ""))
    assert complete("llmrt", "serve", "--max-num-s") == ["--max-num-seqs"]
    assert complete("llmrt", "serve", "--context") == ["--context-length"]
    assert complete("llmrt", "serve", "--schedule-policy", "") == ["fcfs", "lpm", "priority"]
    assert complete("llmrt", "serve", "--dtype", "b") == ["bfloat16"]
    assert complete("/opt/bin/llmrt-serve", "--log-f") == ["--log-format"]
    assert complete("llmrt", "completion", "") == SHELLS
    assert complete("llmrt", "serve", "--port", "") == []
    assert complete("llmrt", "doctor", "--j") == ["--json"]


def test_bash_completes_files_where_a_value_is_one(tmp_path: object) -> None:
    assert complete("llmrt", "serve", "--config", f"{tmp_path}/../{str(tmp_path).rsplit('/', 1)[1]}") != []
    assert complete("llmrt", "serve", "--model", f"{tmp_path}") == [str(tmp_path)]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_has_every_flag(shell: str) -> None:
    text = script(shell)
    for option in config.options():
        for spelling in option.spellings:
            assert (f"-l {spelling[2:]}" if shell == "fish" else spelling) in text
    assert all(name in text for name in main.COMMANDS)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_can_read_its_script(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [program, "-n", "/dev/stdin"], input=script(shell), capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_prints_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == script("bash")
    with pytest.raises(SystemExit):
        main.main(["completion", "tcl"])
