"""What the tests send, as functions of the client that sends it."""

from __future__ import annotations

from support.frames import FRAME_SIZE_ERROR, PROTOCOL_ERROR, raw

from .expect import connection_error

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
MAX_FRAME = 16384
MAX_WINDOW = (1 << 31) - 1
TOKENIZE = b'{"prompt": "x"}'

protocol_error = connection_error(PROTOCOL_ERROR)
frame_size_error = connection_error(FRAME_SIZE_ERROR)


def send(*parts):
    """Sends frames as they are, bytes or made by a function of the client."""
    return lambda client: client.send(*[part(client) if callable(part) else part for part in parts])


def get(stream=1):
    """A request without a body."""
    return lambda client: client.headers(stream, client.get("/health"))


def post(stream=1):
    """The head of a request with a body."""
    return lambda client: client.headers(stream, client.post("/tokenize"), end=False)


def after_answer(*parts):
    """The same once stream 1 is closed."""

    def sent(client):
        client.send(client.headers(1, client.get()))
        assert client.answer(1)[0] == 200
        send(*parts)(client)

    return sent


def continued(*between, pieces=2, stream=1):
    """A request in pieces, with something between the first and the second."""

    def sent(client):
        block = client.block(client.get())
        first, rest = raw(HEADERS, 0x1, 1, block[:5]), block[5:]
        size = -(-len(rest) // (pieces - 1))
        parts = [rest[at : at + size] for at in range(0, len(rest), size)]
        frames = [raw(CONTINUATION, 0x4 if part is parts[-1] else 0, stream, part) for part in parts]
        client.send(first, *[part(client) if callable(part) else part for part in between], *frames)

    return sent


def settings(**values):
    """A SETTINGS frame with one value."""
    numbers = {"push": 2, "window": 4, "frame": 5, "unknown": 0xF0F0}
    pairs = [numbers[name].to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in values.items()]
    return raw(SETTINGS, 0, 0, b"".join(pairs))
