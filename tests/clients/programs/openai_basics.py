"""Chat, completions, models and errors with ``openai`` (any major version): ``openai_basics.py BASE_URL MODEL``."""

import asyncio
import json
import sys

import openai

BASE_URL, MODEL = sys.argv[1:]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CHAT = {"model": MODEL, "messages": QUESTION, "max_tokens": 16, "temperature": 0}
TEXT = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
BAD = {
    "temperature": {"temperature": 3},
    "model": {"model": "absent"},
    "messages": {"messages": [{"role": "user", "content": "x " * 20_000}]},
    "stop": {"stop": ["a", "b", "c", "d", "e"]},
}


def error_of(client: openai.OpenAI, change: dict) -> dict:
    try:
        client.chat.completions.create(**(CHAT | change))
    except openai.APIStatusError as error:
        return {"class": type(error).__name__, "status": error.status_code, "body": error.body, "id": error.request_id}
    raise SystemExit(f"{change} was accepted")


async def asynchronous() -> dict:
    async with openai.AsyncOpenAI(base_url=BASE_URL) as client:
        whole = await client.chat.completions.create(**CHAT)
        stream = await client.chat.completions.create(**CHAT, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    return {"whole": whole.choices[0].message.content, "stream": "".join(pieces)}


def main() -> None:
    with openai.OpenAI(base_url=BASE_URL) as client:
        stream = client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
        seen = {
            "version": openai.VERSION,
            "models": [model.id for model in client.models.list()],
            "model": client.models.retrieve(MODEL).id,
            "chat": client.chat.completions.create(**CHAT).model_dump(),
            "chat_chunks": [chunk.model_dump() for chunk in stream],
            "completion": client.completions.create(**TEXT).model_dump(),
            "completion_chunks": [chunk.model_dump() for chunk in client.completions.create(**TEXT, stream=True)],
            "async": asyncio.run(asynchronous()),
            "errors": {name: error_of(client, change) for name, change in BAD.items()},
        }
        try:
            client.models.retrieve("absent")
        except openai.NotFoundError as error:
            seen["no_model"] = error.body
    print(json.dumps(seen))


main()
