"""Calls the app in this process with the request that the OpenAPI document shows for an operation."""

import json
from typing import Any

from harness.in_process import NOW, Running, request
from petstore.audit import Actor
from petstore.keys import ApiKey, Environment, Scope, mint, new_key
from petstore.operations import Operation
from petstore.plans import Limits
from petstore.settings import BASES
from petstore.web.documents import Json
from petstore.web.replies import Reply
from tests.interface import error_faults, sample


async def ask(
    running: Running,
    operation: Operation,
    secret: str | None = None,
    method: str | None = None,
    body: bytes | None = None,
    environment: Environment = "live",
    **more: Any,
) -> Reply:
    """Returns the response to the documented request, with another method, body or fields if given."""
    shown, path, example = sample(operation.name)
    fields: dict[str, Any] = {"authorization": f"Bearer {secret}"} if secret else {}
    sent = BASES[environment] + path
    return await running.app.answer(
        request(sent, method=method or shown, body=example if body is None else body, **fields, **more)
    )


def error_of(reply: Reply) -> Json:
    """Returns the Error body of a reply, after checking that it is complete."""
    body: Json = json.loads(reply.body)
    assert error_faults(body) == [], f"this body of a {reply.status} is not a complete Error: {body}"
    assert body["status"] == reply.status
    return body


async def key_with(
    running: Running, *scopes: Scope, limit: int = 100, environment: Environment = "live"
) -> tuple[ApiKey, str]:
    secret = mint(environment)
    key = new_key(environment, "enterprise", now=NOW, limits=Limits(limit, limit), scopes=scopes)
    store = {"live": running.store, "staging": running.staging}[environment]
    await store.keys.create(key, secret, Actor("a test", NOW))
    return key, secret
