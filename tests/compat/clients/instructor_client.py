"""instructor: an object of a pydantic class, read from JSON in the answer. Runs where no Hermes is."""

import sys

import instructor
from instructor.exceptions import IncompleteOutputException, InstructorRetryException
from openai import OpenAI
from pydantic import BaseModel


class Reply(BaseModel):
    """A class that any JSON object satisfies: what is tested is the exchange, not the model."""

    model_config = {"extra": "allow"}


url, model = sys.argv[1:3]
client = OpenAI(base_url=url, api_key="none")
for mode in (instructor.Mode.MD_JSON, instructor.Mode.TOOLS):
    asked = instructor.from_openai(client, mode=mode)
    try:
        reply, raw = asked.chat.completions.create_with_completion(
            model=model,
            response_model=Reply,
            max_retries=2,
            max_tokens=24,
            messages=[{"role": "user", "content": 'Say {"word": "yes"} and nothing else.'}],
        )
        print("PARSED", mode.name, reply.model_dump_json())
    except (IncompleteOutputException, InstructorRetryException) as error:
        last = error.last_completion
        assert last is not None and last.choices, f"{mode.name}: no completion came back: {error}"
        print("ANSWERED", mode.name, repr(last.choices[0].message.content))
print("OK", instructor.__version__)
