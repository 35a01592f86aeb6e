"""``llmrt completion``: scripts for bash, zsh and fish, made from the parsers of all commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FILE_VALUES = ("FILE", "MODEL")
"""Metavars whose value may be a path."""


@dataclass(frozen=True)
class Flag:
    """One flag as a shell must know it. ``words`` are its only values, if they are known."""

    spellings: tuple[str, ...]
    help: str
    takes_value: bool
    takes_file: bool
    words: tuple[str, ...]


@dataclass(frozen=True)
class Completion:
    """A command with its flags; ``words`` are the values of its positional argument, if they are known."""

    name: str
    summary: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]


def parser(program: str) -> argparse.ArgumentParser:
    """The flags of the command."""
    flags = argparse.ArgumentParser(
        prog=program,
        description="Print a completion script. bash: source <(llmrt completion bash); zsh: the same with zsh, after "
        "compinit; fish: llmrt completion fish | source.",
    )
    flags.add_argument("shell", choices=sorted(SHELLS), metavar="SHELL", help=", ".join(sorted(SHELLS)))
    return flags


def main(arguments: Sequence[str] | None = None, program: str = "llmrt completion") -> int:
    """Prints the script of the shell that was named."""
    print(SHELLS[parser(program).parse_args(arguments).shell](completions()), end="")
    return 0


def completions() -> list[Completion]:
    """All commands of ``llmrt`` with their flags."""
    from llmrt.cli.main import COMMANDS, load

    return [
        _completion(name, summary, load(name).parser(f"llmrt {name}")) for name, (_, _, summary) in COMMANDS.items()
    ]


def _completion(name: str, summary: str, flags: argparse.ArgumentParser) -> Completion:
    found: list[Flag] = []
    words: tuple[str, ...] = ()
    # argparse has no public way to list what was added to a parser.
    for action in flags._actions:
        choices = _words(action)
        if not action.option_strings:
            words = choices
            continue
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        help_line = " ".join((action.help or "").replace("%%", "%").split())
        found.append(Flag(tuple(action.option_strings), help_line, action.nargs != 0, metavar in FILE_VALUES, choices))
    return Completion(name, summary, tuple(found), words)


def _words(action: argparse.Action) -> tuple[str, ...]:
    if action.choices is not None:
        return tuple(str(choice) for choice in action.choices)
    # The options of the tree check their values themselves and show them in braces.
    if isinstance(action.metavar, str) and action.metavar.startswith("{"):
        return tuple(action.metavar.strip("{}").split(","))
    return ()


def bash(commands: Sequence[Completion]) -> str:
    """A script for bash."""
    cases, values = [], []
    for command in commands:
        flags = " ".join(spelling for flag in command.flags for spelling in flag.spellings)
        cases.append(f'        {command.name}) flags="{flags}" words="{" ".join(command.words)}" ;;')
        for flag in command.flags:
            if flag.takes_value:
                patterns = "|".join(f"{command.name}:{spelling}" for spelling in flag.spellings)
                action = f'compgen -W "{" ".join(flag.words)}" -- "$word"' if flag.words else ":"
                action = 'compgen -f -- "$word"' if flag.takes_file else action
                values.append(f"        {patterns}) COMPREPLY=($({action})); return ;;")
    names = " ".join(command.name for command in commands)
    return f"""# bash completion of llmrt
_llmrt() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}"
    local flags="" words=""
    if [[ "${{COMP_WORDS[0]##*/}}" == llmrt-serve ]]; then
        command=serve
    elif (( COMP_CWORD == 1 )); then
        COMPREPLY=($(compgen -W "{names} --help --version" -- "$word"))
        return
    fi
    case "$command:$before" in
{chr(10).join(values)}
    esac
    case "$command" in
{chr(10).join(cases)}
    esac
    if [[ "$word" == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$word"))
    elif [[ -n "$words" ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _llmrt llmrt llmrt-serve
"""


def zsh(commands: Sequence[Completion]) -> str:
    """A script for zsh."""
    blocks = []
    for command in commands:
        specs = [_zsh_flag(spelling, flag) for flag in command.flags for spelling in flag.spellings]
        specs.append(f"'*:value:{_zsh_action(command.words, True)}'")
        lines = " \\\n            ".join(specs)
        blocks.append(f"        {command.name})\n            _arguments \\\n            {lines} ;;")
    names = " ".join(_single(f"{command.name}:{command.summary}") for command in commands)
    return f"""#compdef llmrt llmrt-serve
_llmrt() {{
    local command
    if [[ "${{words[1]:t}}" == llmrt-serve ]]; then
        command=serve
    elif (( CURRENT == 2 )); then
        local -a commands=({names})
        _describe command commands
        return
    else
        command="${{words[2]}}"
        shift words
        (( CURRENT-- ))
    fi
    case "$command" in
{chr(10).join(blocks)}
    esac
}}
compdef _llmrt llmrt llmrt-serve
"""


def _zsh_flag(spelling: str, flag: Flag) -> str:
    help_line = "".join(f"\\{letter}" if letter in "[]:\\" else letter for letter in flag.help)
    value = f":value:{_zsh_action(flag.words, flag.takes_file)}" if flag.takes_value else ""
    return _single(f"{spelling}[{help_line}]{value}")


def _zsh_action(words: Sequence[str], files: bool) -> str:
    if words:
        return f"({' '.join(words)})"
    return "_files" if files else " "


def fish(commands: Sequence[Completion]) -> str:
    """A script for fish."""
    lines = ["# fish completion of llmrt"]
    for command in commands:
        lines.append(f"complete -c llmrt -n __fish_use_subcommand -f -a {command.name} -d {_single(command.summary)}")
        targets = [f"-c llmrt -n '__fish_seen_subcommand_from {command.name}'"]
        targets += ["-c llmrt-serve"] if command.name == "serve" else []
        for target in targets:
            lines += [f"complete {target} {_fish_flag(flag)}" for flag in command.flags]
            if command.words:
                lines.append(f"complete {target} -f -a {_single(' '.join(command.words))}")
    return "\n".join(lines) + "\n"


def _fish_flag(flag: Flag) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.spellings]
    value = ["-r" if flag.takes_file else "-x"] if flag.takes_value else []
    words = [f"-a {_single(' '.join(flag.words))}"] if flag.words else []
    return " ".join([*names, *value, *words, f"-d {_single(flag.help)}"])


def _single(text: str) -> str:
    """Text in single quotes, as all three shells read it."""
    return "'" + text.replace("'", "'\\''") + "'"


SHELLS: dict[str, Callable[[Sequence[Completion]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}

if __name__ == "__main__":
    sys.exit(main())
