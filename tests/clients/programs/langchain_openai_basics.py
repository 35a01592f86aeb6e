"""``ChatOpenAI`` and ``OpenAI`` of ``langchain-openai``: ``langchain_openai_basics.py BASE_URL MODEL``."""

import asyncio
import json
import sys

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

BASE_URL, MODEL = sys.argv[1:]
QUESTIONS = [f"What is the capital of {country}?" for country in ("France", "Italy", "Spain")]
CONVERSATION = [
    SystemMessage("You answer in one sentence."),
    HumanMessage("What is the capital of France?"),
    AIMessage("Paris."),
    HumanMessage("What is the capital of Italy?"),
]


def message(answer: AIMessage) -> dict:
    return {"text": answer.content, "usage": answer.usage_metadata, "metadata": answer.response_metadata}


async def asynchronous(chat: ChatOpenAI) -> dict:
    whole = await chat.ainvoke(QUESTIONS[0])
    pieces = [chunk.content async for chunk in chat.astream(QUESTIONS[0])]
    return {"whole": whole.content, "stream": "".join(pieces)}


def main() -> None:
    chat = ChatOpenAI(model=MODEL, base_url=BASE_URL, temperature=0, max_tokens=16)
    text = OpenAI(model=MODEL, base_url=BASE_URL, temperature=0, max_tokens=8)
    chain = ChatPromptTemplate.from_messages([("user", "What is the capital of {country}?")]) | chat | StrOutputParser()
    total = None
    for chunk in chat.stream(QUESTIONS[0], stream_usage=True):
        total = chunk if total is None else total + chunk
    seen = {
        "invoke": message(chat.invoke(QUESTIONS[0])),
        "one_by_one": [chat.invoke(question).content for question in QUESTIONS],
        "stream": [chunk.content for chunk in chat.stream(QUESTIONS[0])],
        "stream_usage": total.usage_metadata,
        "batch": [answer.content for answer in chat.batch(QUESTIONS)],
        "conversation": chat.invoke(CONVERSATION).content,
        "chain": chain.invoke({"country": "France"}),
        "async": asyncio.run(asynchronous(chat)),
        "text": text.invoke("The capital of France is"),
        "text_stream": list(text.stream("The capital of France is")),
    }
    try:
        chat.invoke(QUESTIONS[0], temperature=3)
    except openai.BadRequestError as error:
        seen["error"] = error.body
    print(json.dumps(seen))


main()
