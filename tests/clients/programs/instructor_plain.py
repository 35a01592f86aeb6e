"""``instructor`` in the mode that needs nothing but text: ``instructor_plain.py BASE_URL MODEL``."""

import json
import sys

import instructor
import openai
from instructor.core import InstructorRetryException
from pydantic import BaseModel

BASE_URL, MODEL = sys.argv[1:]


class Person(BaseModel):
    name: str
    age: int


class Ship(BaseModel):
    tonnage: float


def main() -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=BASE_URL), mode=instructor.Mode.MD_JSON)
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "Ada is 36 years old."}]}
    person, completion = client.chat.completions.create_with_completion(response_model=Person, **ask)
    partials = [
        partial.model_dump() for partial in client.chat.completions.create_partial(response_model=Person, **ask)
    ]
    seen = {
        "person": person.model_dump(),
        "completion": completion.model_dump(),
        "first_partial": partials[0],
        "last_partial": partials[-1],
    }
    try:
        client.chat.completions.create(response_model=Ship, max_retries=2, **ask)
    except InstructorRetryException as error:
        seen["attempts"] = error.n_attempts
    print(json.dumps(seen))


main()
