"""POST /v1/responses: a body becomes that of a chat and goes its way; only the answer has another form."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import Field
from starlette.responses import Response

from cloister.gateway.api import Call, api_of
from cloister.gateway.completions import CHAT, answer_to
from cloister.gateway.errors import ResponseNotFound
from cloister.gateway.guard import read_body
from cloister.gateway.openapi import errors, generation_docs
from cloister.gateway.responses_reply import ResponsesReply
from cloister.gateway.schema import GenerationRequest
from cloister.responses import PATH, chat_body

router = APIRouter()
ENDPOINT = replace(CHAT, reply=ResponsesReply)


class ResponsesRequest(GenerationRequest):
    """The body of POST /v1/responses as it is described. Read, it is a chat's: `cloister.responses`."""

    input: str | list[dict[str, Any]] | None = Field(default=None, description="a text, or messages, calls and outputs")
    instructions: str | None = None
    max_output_tokens: Annotated[int | None, Field(ge=1, le=2**31 - 1, description="default 1024")] = None
    text: dict[str, Any] | None = Field(default=None, description='{"format": …}')
    tools: list[dict[str, Any]] | None = Field(default=None, description="functions")
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, str] | None = Field(default=None, description="not used")
    store: Annotated[bool | None, Field(json_schema_extra={"enum": [None, False]})] = None
    previous_response_id: None = Field(default=None, description="answers are not stored; send the history in `input`")


@router.post(PATH, **generation_docs("ResponsesRequest", "ResponseObject"))
async def create_response(request: Request, call: Call) -> Response:
    """Continue a conversation, in the form of OpenAI's Responses."""
    return await answer_to(request, call, ENDPOINT, chat_body(await read_body(request, api_of(request).settings)))


@router.get(PATH + "/{response_id}", responses=errors(400, 401, 404, 503))
@router.delete(PATH + "/{response_id}", responses=errors(400, 401, 404, 503))
async def find_response(response_id: str, call: Call) -> Response:
    """No answer is stored, so none is found."""
    raise ResponseNotFound("This server stores no answers.", hint="An answer comes to the request that asks for it.")


@router.post(PATH + "/{action}", include_in_schema=False)
async def act_on_response(action: str, call: Call) -> Response:
    """`compact`, `input_tokens` …: what else OpenAI has here."""
    raise HTTPException(404)
