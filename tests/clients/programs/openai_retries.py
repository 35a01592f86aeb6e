"""One completion with ``openai``, retried when refused: ``openai_retries.py BASE_URL MODEL MAX_RETRIES API_KEY``.

Asks when a line comes on standard input. Prints a line of JSON when it is ready, for every answer of the server as it
comes, and for the end.
"""

import json
import sys
import time
from typing import Any

import openai

BASE_URL, MODEL, MAX_RETRIES, API_KEY = sys.argv[1:]


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def answered(response: Any) -> None:
    tell(status=response.status_code, at=time.monotonic(), retry_after_ms=response.headers.get("retry-after-ms"))


def main() -> None:
    http = openai.DefaultHttpxClient(event_hooks={"response": [answered]})
    client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=int(MAX_RETRIES), http_client=http)
    tell(ready=True)
    sys.stdin.readline()
    try:
        answer = client.completions.create(model=MODEL, prompt="Hi", max_tokens=200)
    except openai.APIStatusError as error:
        tell(error=type(error).__name__, body=error.body)
    else:
        tell(text=answer.choices[0].text)


main()
