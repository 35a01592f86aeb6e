"""Probes of a running server: every endpoint of its topology gets a greeting and a question, as a peer would send.

A probe goes by the role ``doctor``, whose place no part of a server holds or depends on, and only asks for ``stats``.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import socket
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from llmrt import link, wire
from llmrt.supervisor.facts import Facts

OK, LOADING, UNUSED, BROKEN = "ok", "loading", "unused", "broken"

_STATES = {"T": "is stopped (SIGSTOP; SIGCONT lets it go on)", "t": "is held by a debugger", "Z": "has ended"}


@dataclass(frozen=True)
class Hop:
    """One endpoint, probed. ``round_trip`` in seconds, from a question to its answer; ``stats`` is the answer."""

    name: str
    endpoint: str
    process: str
    pid: int | None
    state: str
    detail: str
    round_trip: float | None = None
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Probe:
    outbox: link.Outbox
    asked: float | None = None
    round_trip: float | None = None
    reply: wire.Reply | None = None
    complaint: str = ""


def probe(server: Facts, timeout: float) -> list[Hop]:
    """All hops of a server; each gets ``timeout`` seconds, the front door after all others at the same time."""
    table = server.topology.table()
    used = {name: endpoint for name, endpoint in table.items() if not name.startswith("ranks.")}
    answers = _ask({name: used[name] for name in used if name == "gateway.status"}, timeout)
    places = _places(answers)
    empty = [name for name, node in places.items() if node is None]
    answers.update(_ask({name: used[name] for name in used if name not in answers and name not in empty}, timeout))
    hops = [_judge(server, name, used[name], answers[name], timeout) for name in used if name in answers]
    hops = [_with_node(hop, node) if (node := places.get(hop.name)) is not None else hop for hop in hops]
    # Unlike the front door, workers tell everybody who can reach their links.
    starting = any(hop.stats.get("core") == "starting" for hop in hops)
    health = _http(server, timeout, starting)
    if starting or health.state == LOADING:
        # The core greets nobody before its model is there, and some links may not be there yet.
        silent = [name for name, each in answers.items() if each.reply is None and not each.complaint]
        waiting = ("scheduler.requests", *silent, *(hop.name for hop in hops if hop.stats))
        hops = [_loading(hop) if hop.name in waiting else hop for hop in hops]
    unused = [
        Hop(name, endpoint, "scheduler", None, UNUSED, "one rank lives in the scheduler")
        for name, endpoint in table.items()
        if name not in used
    ]
    unused += [Hop(name, used[name], "gateway", None, UNUSED, "no entry node has joined here") for name in empty]
    return [health, *hops, *unused]


def _places(answers: Mapping[str, _Probe]) -> dict[str, dict[str, Any] | None]:
    """The entry node behind each place that the gateway keeps for one, ``None`` where there is none."""
    reply = next((probe.reply for probe in answers.values()), None)
    if reply is None or not reply.ok:
        return {}
    slots = json.loads(reply.value)["slots"]
    return {f"entry[{slot['worker']}].results": slot if slot["node"] is not None else None for slot in slots}


def _with_node(hop: Hop, node: dict[str, Any]) -> Hop:
    """The hop to an entry node, by what the gateway knows of that."""
    told = f"node {node['node']} since {node['seconds']:.0f} s, {node['queued_bytes']} bytes wait for it"
    stats = {**hop.stats, "node": node["node"], "queued_bytes": node["queued_bytes"]}
    return dataclasses.replace(hop, process="entry node", pid=None, detail=f"{told}; {hop.detail}", stats=stats)


def _ask(endpoints: Mapping[str, str], timeout: float) -> dict[str, _Probe]:
    with zmq.Context() as context:
        identity = link.Identity("doctor", os.getpid())
        probes = {name: _Probe(link.Outbox(at, identity, context=context)) for name, at in endpoints.items()}
        poller = zmq.Poller()
        for each in probes.values():
            each.outbox.register(poller)
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0 and any(each.reply is None for each in probes.values()):
            link.poll(poller, [each.outbox for each in probes.values()], left)
            for each in probes.values():
                _advance(each)
        for each in probes.values():
            each.outbox.unregister(poller)
            each.outbox.close("the probe ends")
    return probes


def _advance(probe: _Probe) -> None:
    for event in probe.outbox.receive():
        if isinstance(event, link.Up):
            probe.asked = time.monotonic()
            probe.outbox.send(wire.Call(1, "stats", "{}"))
        elif isinstance(event, link.Down):
            probe.complaint = event.reason
        elif isinstance(event.message, wire.Reply) and probe.asked is not None:
            probe.round_trip = time.monotonic() - probe.asked
            probe.reply = event.message


def _judge(server: Facts, name: str, endpoint: str, probe: _Probe, timeout: float) -> Hop:
    process = _process_of(name, server)
    pid = server.processes.get(process)
    if probe.reply is not None and probe.reply.ok:
        stats = json.loads(probe.reply.value)
        state, told = _entry(stats) if name.startswith("entry[") else (OK, _told(stats))
        return Hop(name, endpoint, process, pid, state, told, probe.round_trip, stats)
    if probe.reply is not None:
        return Hop(name, endpoint, process, pid, BROKEN, f"refuses to answer: {probe.reply.value}", probe.round_trip)
    return Hop(name, endpoint, process, pid, BROKEN, _silence(endpoint, process, pid, probe, timeout))


def _silence(endpoint: str, process: str, pid: int | None, probe: _Probe, timeout: float) -> str:
    """Why nothing came, as far as can be seen from here."""
    if pid is not None and (state := process_state(pid)) is not None:
        return f"the {process} (process {pid}) {state}"
    if probe.complaint:
        return probe.complaint
    if endpoint.startswith("ipc://") and not Path(endpoint.removeprefix("ipc://")).is_socket():
        return "nobody listens: the socket is gone"
    if probe.asked is not None:
        return f"greets, but does not answer within {timeout:g} s"
    return f"no answer within {timeout:g} s"


def process_state(pid: int) -> str | None:
    """What keeps a process from answering, to follow its name; ``None`` when it runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return "is gone" if Path("/proc/self").exists() else None
    return _STATES.get(state)


def _http(server: Facts, timeout: float, starting: bool) -> Hop:
    """The front door: ``/ready`` as a client would ask it. Where it keeps that to itself, ``starting`` decides."""
    pid = server.pid
    began = time.monotonic()
    try:
        state, detail = _ready(server.url, timeout, starting)
    except (OSError, http.client.HTTPException) as error:
        if "CERTIFICATE_REQUIRED" not in str(error):
            silent, why = process_state(pid), str(error) or type(error).__name__
            detail = f"the supervisor (process {pid}) {silent}" if silent is not None else f"does not answer: {why}"
            return Hop("http", server.url, "supervisor", pid, BROKEN, detail)
        # Whoever refuses us is there.
        state, detail = LOADING if starting else OK, "asks clients for a certificate"
    return Hop("http", server.url, "supervisor", pid, state, detail, time.monotonic() - began)


def _ready(url: str, timeout: float, starting: bool) -> tuple[str, str]:
    """State and detail of a front door that answers."""
    status, body = _get(url, "/ready", timeout)
    if status == 200:
        return OK, "/ready answers 200"
    # Needs no key, and fails only where the model is lost.
    health, reason = _get(url, "/health", timeout)
    if status == 401:
        if health != 200:
            return BROKEN, f"asks for a key, and /health answers {health}: {_message(reason)}"
        return LOADING if starting else OK, "asks for a key; /health answers 200"
    if status == 503:
        return LOADING if health == 200 else BROKEN, _message(body)
    return BROKEN, f"/ready answers {status}"


def _get(url: str, path: str, timeout: float) -> tuple[int, bytes]:
    connection = _connection(urllib.parse.urlsplit(url), timeout)
    try:
        # Every server takes this name; its address it may not take (--allowed-hosts).
        connection.request("GET", path, headers={"host": "localhost"})
        response = connection.getresponse()
        return response.status, response.read(1 << 16)
    finally:
        connection.close()


def _connection(at: urllib.parse.SplitResult, timeout: float) -> http.client.HTTPConnection:
    if at.scheme == "https":
        # It is asked whether it answers, not who it is: its name need not be that of the address.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(at.hostname or "", at.port, timeout=timeout, context=context)
    if at.scheme != "unix":
        return http.client.HTTPConnection(at.hostname or "", at.port, timeout=timeout)
    connection = http.client.HTTPConnection("localhost", timeout=timeout)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(timeout)
    try:
        connection.sock.connect(at.path)
    except OSError:
        connection.close()
        raise
    return connection


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "answers 503"


def _loading(hop: Hop) -> Hop:
    if hop.state != BROKEN or (hop.pid is not None and process_state(hop.pid) is not None):
        return hop
    return Hop(hop.name, hop.endpoint, hop.process, hop.pid, LOADING, "the model is still loading")


def _process_of(name: str, server: Facts) -> str:
    """Which process listens at an endpoint; an entry worker may live in the supervisor's."""
    numbered = name.partition(".")[0]
    part = numbered.partition("[")[0]
    if part == "scheduler":
        return part if part in server.processes else "mock engine"
    if part == "gateway":
        return part
    if part in ("entry", "detokenizer"):
        return next((each for each in (numbered, part) if each in server.processes), "supervisor")
    return "supervisor"


def _entry(stats: dict[str, Any]) -> tuple[str, str]:
    """What an entry worker says of itself. One that the core does not know answers nobody."""
    last = stats["seconds_since_last_frame"]
    told = (
        f"last frame {'never' if last is None else f'{last:.1f} s ago'}, {stats['queued_prompts']} prompts queued, "
        f"{stats['open_requests']} open requests on {stats['open_connections']} connections, "
        f"{stats['waiting_turns']} wait for their turn"
    )
    if stats["core"] != "up":
        return BROKEN, f"not registered with the core, which is {stats['core']} for it; {told}"
    return OK, f"registered, {told}"


def _told(stats: dict[str, Any]) -> str:
    """The first counts that are not zero."""
    told = [
        f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}"
        for key, value in stats.items()
        if isinstance(value, (int, float, str)) and value
    ]
    return ", ".join(told[:4]) or "idle"
