"""``llmrt doctor``: what is installed, missing and slow here, and which hop of a running server is broken."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmrt.cli import machine, probe
from llmrt.cli.machine import Finding
from llmrt.cli.probe import BROKEN, LOADING, OK, UNUSED, Hop
from llmrt.config import GIB
from llmrt.supervisor import facts
from llmrt.supervisor.facts import Facts

SICK = 1
_MARKS = {OK: "ok", LOADING: "..", UNUSED: "--", BROKEN: "!!"}


def parser(program: str) -> argparse.ArgumentParser:
    """The flags of the command."""
    flags = argparse.ArgumentParser(
        prog=program,
        description="Show what is installed, missing and slow, and probe every hop of the servers of this user "
        "that run on this machine. Exit code 1 when a hop is broken or a part of llmrt is missing.",
        allow_abbrev=False,
    )
    flags.add_argument("--pid", type=int, metavar="N", help="probe only the server whose supervisor has this id")
    flags.add_argument(
        "--timeout", type=_seconds, default=5.0, metavar="X", help="seconds that a hop may take to answer (default: 5)"
    )
    flags.add_argument("--json", action="store_true", help="print one JSON object")
    return flags


@dataclass(frozen=True)
class Report:
    """All that was found; ``servers`` pairs each running server with its hops."""

    versions: dict[str, str | None]
    machine: dict[str, Any]
    findings: list[Finding]
    servers: list[tuple[Facts, list[Hop]]]

    @property
    def broken(self) -> list[str]:
        """The hops that are broken."""
        return [f"{hop.name} of {server.url}" for server, hops in self.servers for hop in hops if hop.state == BROKEN]

    @property
    def missing(self) -> list[str]:
        """What llmrt cannot do without."""
        # Another model than the default one does as well.
        return [each.what for each in self.findings if each.level == "missing" and "default model" not in each.what]

    @property
    def sick(self) -> bool:
        """Whether something needs mending."""
        return bool(self.broken or self.missing)


def main(arguments: Sequence[str] | None = None, program: str = "llmrt doctor") -> int:
    """Looks, prints and returns the exit code: 0 when all is well, 1 when something is broken or missing."""
    options = parser(program).parse_args(arguments)
    servers = facts.running()
    if options.pid is not None:
        servers = [server for server in servers if server.pid == options.pid]
        if not servers:
            print(f"{program}: no server of yours runs as process {options.pid}", file=sys.stderr)
            return SICK
    versions, found = machine.versions(), machine.facts()
    probed = [(server, probe.probe(server, options.timeout)) for server in servers]
    report = Report(versions, found, machine.findings(found, versions), probed)
    if options.json:
        print(json.dumps(_plain(report), indent=2))
    else:
        print("\n".join(_lines(report)))
    return SICK if report.sick else 0


def _plain(report: Report) -> dict[str, Any]:
    """The report as JSON can hold it."""
    servers = [
        {
            "pid": server.pid,
            "version": server.version,
            "url": server.url,
            "model": server.model,
            "processes": server.processes,
            "topology": server.topology.table(),
            "hops": [dataclasses.asdict(hop) for hop in hops],
        }
        for server, hops in report.servers
    ]
    return {
        "ok": not report.sick,
        "versions": report.versions,
        "machine": report.machine,
        "findings": [dataclasses.asdict(each) for each in report.findings],
        "servers": servers,
    }


def _lines(report: Report) -> list[str]:
    lines = ["Versions"]
    lines += [f"  {name:<18}{version or 'not installed'}" for name, version in report.versions.items()]
    lines += ["", "Machine", *_machine_lines(report.machine)]
    if report.findings:
        lines += ["", "Missing or slow"]
        for each in report.findings:
            lines += [f"  {each.level:<9}{each.what}", f"           -> {each.advice}"]
    for server, hops in report.servers:
        lines += ["", *_server_lines(server, hops)]
    if not report.servers:
        lines += ["", "No server of this user runs here."]
    return [*lines, "", _verdict(report)]


def _machine_lines(found: dict[str, Any]) -> list[str]:
    def gib(count: int | None) -> str:
        return "unknown" if count is None else f"{count / GIB:.1f} GiB"

    return [
        f"  processor         {found['processor'] or 'unknown'}",
        f"  features          {' '.join(found['features']) or 'none that matter'}",
        f"  processors        {found['usable_processors']} usable of {found['processors']}",
        f"  memory            {gib(found['available_memory'])} free of {gib(found['memory'])}",
        f"  open files        {found['open_files']}",
    ]


def _server_lines(server: Facts, hops: list[Hop]) -> list[str]:
    processes = ", ".join(f"{name} {pid}" for name, pid in server.processes.items())
    lines = [f"Server {server.url}: {server.model}, llmrt {server.version}", f"  processes: {processes}"]
    width = max(len(hop.name) for hop in hops) + 2
    for hop in hops:
        time = f"{hop.round_trip * 1000:6.1f} ms" if hop.round_trip is not None else " " * 9
        lines.append(f"  {_MARKS[hop.state]} {hop.name:<{width}}{time}  {hop.detail}")
        lines.append(f"     {'':<{width}}{'':9}  {hop.endpoint}")
    return lines


def _verdict(report: Report) -> str:
    if report.broken:
        return f"Broken: {', '.join(report.broken)}."
    if report.missing:
        return f"Missing: {', '.join(report.missing)}."
    return "Nothing is broken."


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) <= 3600:
            return value
    raise argparse.ArgumentTypeError(f"must be a number of seconds, at most 3600, not {text!r}")


if __name__ == "__main__":
    sys.exit(main())
