"""The guide: the prose of the OpenAPI document, which the reference page shows first. Markdown."""

from petstore.errors import STATUS_OF_CODE
from petstore.plans import PLANS
from petstore.web import examples

# What each code means, and whether a retry can succeed.
CODES = {
    "invalid_body": ("The body breaks a rule. The message names every member at fault.", "no"),
    "invalid_parameter": ("A parameter or the `Idempotency-Key` breaks a rule. The message names it.", "no"),
    "malformed_request": ("The request is not valid HTTP, or larger than the service takes.", "no"),
    "unauthorized": ("The key is missing or invalid.", "no"),
    "insufficient_scope": ("The key lacks the scope.", "no"),
    "pet_not_found": ("No animal has this id.", "no"),
    "not_found": ("Nothing is at this address.", "no"),
    "method_not_allowed": ("The address does not take this method. See `Allow`.", "no"),
    "request_timeout": ("The request took too long to arrive.", "yes"),
    "idempotency_conflict": ("The first request with this `Idempotency-Key` is still running.", "shortly"),
    "gone": ("The operation has been removed.", "no"),
    "body_too_large": ("The body has more than 64 KiB.", "no"),
    "unsupported_media_type": ("The body is not `application/json`, or has a `Content-Encoding`.", "no"),
    "idempotency_mismatch": ("This `Idempotency-Key` was used before with another body.", "no"),
    "rate_limit_exceeded": ("The minute or the day is used up.", "after `Retry-After`"),
    "key_banned": ("Too many 429s in a row.", "after `Retry-After`"),
    "internal_error": ("The service has a bug. Quote the `X-Request-Id`.", "with an `Idempotency-Key`"),
    "unavailable": ("The service cannot answer right now.", "after `Retry-After`"),
}


DEPRECATION = """
## Deprecation

`GET /pets/{petId}` is deprecated and will be removed on 5 December 2030. From that day on it answers 410 `gone`, and a
201 no longer has a `Location`. Until then its answers carry `Deprecation`, `Sunset` and a `Link` to this page. The
replacement is `GET /pets` with a `status` filter: list the animals of a status with `limit=100`, and pick yours by its
`id`. Keep what you have listed. An id never changes its animal.
"""


def guide(live: str, staging: str, *, sunset_passed: bool) -> str:
    """For the two base addresses. From the sunset on it no longer speaks of the operation that is gone."""
    plans = "\n".join(
        f"| {plan} | {limits.per_minute:,} | {limits.per_day:,} |"
        if limits
        else f"| {plan} | set per key | set per key |"
        for plan, limits in PLANS.items()
    )
    codes = "\n".join(
        f"| `{code}` | {_statuses(code)} | {meaning} | {retry} |" for code, (meaning, retry) in CODES.items()
    )
    return f"""
Browse and add individual animals that are available for adoption.

Every request carries an API key: `Authorization: Bearer <API_KEY>`. Keys come from the operator of this service.

## Environments

| environment | base address | keys begin with |
|---|---|---|
| live | `{live}` | `pets_live_` |
| staging | `{staging}` | `pets_test_` |

Both environments have the same paths and share nothing: each has its own animals, keys and rate limits.

## Pages

A list has at most 100 animals. When more animals exist, the answer has a `Link` header with `rel="next"`: a path or a
URL, to be resolved against the address of the request. Without such a header the page is the last one. The `ETag` of a
page, sent back as `If-None-Match`, turns an unchanged page into a 304.

## Adding an animal once

When an answer is lost, you cannot know whether the animal was added. Send an `Idempotency-Key` that is new for each
animal and the same for each retry. For 24 hours the same key and body get the original answer again.

## Rate limits

| plan | requests per minute | requests per day |
|---|---|---|
{plans}

Every response carries `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`. After a 429, wait as long
as `Retry-After` says: if no other process uses the key, the next request is then admitted. Back off exponentially after
further 429s. A key that keeps asking is banned for a minute, then for two, up to an hour.

## Errors

Every error is an `Error` object. Decide by its `code`. The list of codes grows: treat an unknown code by its status.
Every response has a unique `X-Request-Id`: quote it when you ask for help.

| code | status | meaning | retry |
|---|---|---|---|
{codes}
{"" if sunset_passed else DEPRECATION}
## Versions

`v1` only grows: new optional parameters, headers and error codes, and new members of responses. Ignore what you do not
know. Anything else waits for `v2`, whose base addresses end in `v2`. Both versions will run side by side for at
least 24 months.
""".strip()


def _statuses(code: str) -> str:
    found = {example.status for example in examples.ERRORS if example.code == code} or {STATUS_OF_CODE[code]}
    return ", ".join(map(str, sorted(found)))
