"""DELETE /v1/sessions/{session}: what was kept of a conversation is forgotten now, not when it has been idle long."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from cloister.gateway.api import AskedBy, api_of
from cloister.gateway.openapi import errors
from cloister.gateway.session import check_name

router = APIRouter()


@router.delete(
    "/v1/sessions/{session:path}",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "There is no such session any more"}, **errors(400, 401, 503)},
)
async def end_session(request: Request, session: str, asked: AskedBy) -> Response:
    """End one of the caller's sessions, and its vault with all it kept. Whether there was one is not told."""
    check_name(session)
    await api_of(request).backend.end_session(asked.caller.tenant, session, asked.caller.trust_group)
    return Response(status_code=204)
