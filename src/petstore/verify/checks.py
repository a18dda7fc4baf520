"""The table of checks. Each check's docstring is the promise that it tests."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from petstore.verify import (
    authentication,
    caching,
    connections,
    cors,
    creating,
    errors_on_demand,
    every_response,
    getting,
    idempotency,
    limits,
    listing,
    methods,
    nodes,
    paging,
    paths,
    strict_handling,
)
from petstore.verify.findings import Findings
from petstore.verify.session import Session

Level = Literal["spec", "contract"]
Need = Literal["write", "limit key", "addresses", "errors on demand"]

LEVELS: tuple[Level, ...] = ("spec", "contract")
# How the operator can meet each need when running `petstore verify`.
OPTIONS: dict[Need, str] = {
    "write": "`--write`, or an address that offers errors on demand",
    "limit key": "`--limit-key`",
    "addresses": "`--also`",
    "errors on demand": "an address that offers errors on demand, such as staging",
}


class Check(NamedTuple):
    run: Callable[[Session], Findings]
    level: Level
    source: str  # a section of the specification ("spec") or a heading in docs/api.md ("contract")
    requests: int  # the maximum number of requests, excluding those sent with the limit key
    per_address: int = 0  # additional requests for each address
    per_pair: int = 0  # additional requests for each pair of addresses
    needs: tuple[Need, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.run.__module__.rpartition('.')[2]}.{self.run.__name__}"

    @property
    def promise(self) -> str:
        return self.run.__doc__ or ""

    def most_requests(self, addresses: int) -> int:
        return self.requests + self.per_address * addresses + self.per_pair * addresses * (addresses - 1)


AUTHENTICATION, ERRORS, LIMITS = "Authentication", "Errors", "Limits"
LIST, ADD, GET = "List animals", "Add an animal", "Get an animal (deprecated)"
API_LIST, API_ADD, API_GET = "List animals: `GET /pets`", "Add an animal: `POST /pets`", (
    "Get an animal: `GET /pets/{petId}` (deprecated)"
)  # fmt: skip
API, API_ANIMALS, API_METHODS, API_LIMITS = "The API", "Animals", "Other methods", "Rate limits"
API_HEADERS, API_TESTING = "Headers", "Testing your client"

CHECKS = (
    Check(authentication.missing_key, "spec", AUTHENTICATION, 3),
    Check(authentication.unknown_key, "spec", AUTHENTICATION, 1),
    Check(authentication.other_scheme, "spec", AUTHENTICATION, 1),
    Check(authentication.challenge, "contract", AUTHENTICATION, 2),
    Check(authentication.scheme_in_any_case, "contract", AUTHENTICATION, 1),
    Check(authentication.two_keys, "contract", AUTHENTICATION, 1),
    # Add animals first, so that the lists are not empty.
    Check(creating.created, "spec", ADD, 3, needs=("write",)),
    Check(creating.status_optional, "spec", ADD, 1, needs=("write",)),
    Check(creating.fetched, "spec", GET, 2, needs=("write",)),
    Check(creating.missing_fields, "spec", ADD, 3, needs=("write",)),
    Check(creating.invalid_values, "spec", ADD, len(creating.INVALID_VALUES), needs=("write",)),
    Check(creating.forbidden_values, "contract", API_ANIMALS, len(creating.FORBIDDEN_VALUES), needs=("write",)),
    Check(creating.malformed_bodies, "contract", API_ADD, len(creating.MALFORMED), needs=("write",)),
    Check(creating.every_field_named, "contract", API_ADD, 1, needs=("write",)),
    Check(creating.position_named, "contract", API_ADD, 1, needs=("write",)),
    Check(creating.stored_as_sent, "contract", API_ANIMALS, 1, needs=("write",)),
    Check(creating.location, "contract", API_HEADERS, 1, needs=("write",)),
    Check(creating.media_types, "contract", API, 2, needs=("write",)),
    Check(creating.added_once, "contract", API_ADD, 3, needs=("write",)),
    Check(creating.visible_at_once, "contract", API_ADD, 19, needs=("write",)),
    Check(idempotency.replay, "contract", API_ADD, 2, needs=("write",)),
    Check(idempotency.mismatch, "contract", API_ADD, 3, needs=("write",)),
    Check(idempotency.parallel, "contract", API_ADD, 8, needs=("write",)),
    Check(idempotency.invalid_key, "contract", API_ADD, 1, needs=("write",)),
    Check(listing.array, "spec", LIST, 1),
    Check(listing.limit, "spec", LIST, 2),
    Check(listing.limit_maximum, "spec", LIMITS, 1),
    Check(listing.status_filter, "spec", LIST, 3),
    Check(listing.order, "contract", API_LIST, 1),
    Check(listing.exact_length, "contract", API_LIST, 5),
    Check(listing.status_complete, "contract", API_LIST, 4),
    Check(listing.invalid_parameters, "contract", API_LIST, len(listing.INVALID)),
    Check(listing.every_parameter_named, "contract", API_LIST, 1),
    Check(listing.unknown_parameters, "contract", API_LIST, 2),
    Check(paging.complete, "contract", API_LIST, 8),
    Check(paging.link_address, "contract", API_LIST, 1),
    Check(paging.link_parameters, "contract", API_LIST, 3),
    Check(paging.cursors, "contract", API_LIST, 4),
    Check(caching.strong_tag, "contract", API_LIST, 2),
    Check(caching.not_modified, "contract", API_LIST, 4),
    Check(caching.other_tag, "contract", API_LIST, 1),
    Check(caching.tag_changes, "contract", API_LIST, 4, needs=("write",)),
    Check(caching.not_cached, "contract", API_HEADERS, 2),
    Check(caching.not_compressed, "contract", API_HEADERS, 1),
    Check(getting.found, "spec", GET, 2),
    Check(getting.unknown, "spec", GET, 1),
    Check(getting.invalid_ids, "contract", API_GET, 4),
    Check(getting.deprecation, "contract", API_GET, 3),
    Check(methods.head, "contract", API_METHODS, 4),
    Check(methods.options, "contract", API_METHODS, 1),
    Check(methods.other_methods, "contract", API_METHODS, 2, needs=("write",)),
    Check(methods.key_first, "contract", ERRORS, 2),
    Check(methods.path_before_method, "contract", ERRORS, 2, needs=("write",)),
    Check(paths.unknown, "contract", ERRORS, 1),
    Check(paths.slashes, "contract", API, 3),
    Check(paths.dot_segments, "contract", API, 3),
    Check(paths.encoded_slash, "contract", API, 2),
    Check(strict_handling.parameters, "contract", API_LIST, 2),
    Check(strict_handling.members, "contract", API_ADD, 1, needs=("write",)),
    Check(
        errors_on_demand.each_code, "contract", API_TESTING, len(errors_on_demand.CODES), needs=("errors on demand",)
    ),
    Check(errors_on_demand.retry_after, "contract", API_TESTING, 1, needs=("errors on demand",)),
    Check(errors_on_demand.delay, "contract", API_TESTING, 1, needs=("errors on demand",)),
    Check(errors_on_demand.nothing_done, "contract", API_TESTING, 2, needs=("errors on demand", "write")),
    Check(errors_on_demand.only_with_key, "contract", API_TESTING, 1),
    Check(connections.pipelining, "contract", API, 3),
    Check(connections.expect_continue, "contract", API, 1, needs=("write",)),
    Check(connections.chunked_body, "contract", API, 1, needs=("write",)),
    Check(connections.largest_body, "contract", API_ADD, 1, needs=("write",)),
    Check(connections.body_too_large, "contract", API_ADD, 2, needs=("write",)),
    Check(connections.malformed, "contract", ERRORS, 1),
    Check(connections.long_target, "contract", ERRORS, 1),
    Check(cors.exposed_headers, "contract", API_HEADERS, 2),
    Check(limits.every_request_counts, "contract", API_LIMITS, 5),
    Check(limits.every_write_counts, "contract", API_LIMITS, 6, needs=("write",)),
    Check(limits.refused_key_does_not_count, "contract", API_LIMITS, 3),
    Check(nodes.visible_everywhere, "contract", API_ADD, 0, 5, 2, needs=("addresses", "write")),
    Check(nodes.same_counters, "contract", API_LIMITS, 0, 2, needs=("addresses",)),
    Check(nodes.same_tags, "contract", API_LIST, 0, 1, needs=("addresses",)),
    Check(nodes.same_cursors, "contract", API_LIST, 1, 2, needs=("addresses",)),
    Check(nodes.same_time, "contract", API_LIMITS, 0, 4, needs=("addresses",)),
    Check(limits.exact, "spec", LIMITS, 0, needs=("limit key",)),
    Check(limits.refusal, "spec", ERRORS, 0, needs=("limit key",)),
    Check(limits.refusal_headers, "contract", API_LIMITS, 0, needs=("limit key",)),
    Check(limits.refusal_first, "contract", ERRORS, 0, needs=("limit key",)),
    Check(limits.retry_after, "spec", ERRORS, 0, needs=("limit key",)),
    # These checks come last, because they examine the responses that all other checks have received.
    Check(every_response.rate_limit_headers, "spec", LIMITS, 0),
    Check(every_response.rate_limit_values, "spec", LIMITS, 0),
    Check(every_response.error_bodies, "spec", ERRORS, 0),
    Check(every_response.rate_limit_headers_once, "contract", API_HEADERS, 0),
    Check(every_response.errors_exactly, "contract", ERRORS, 0),
    Check(every_response.request_ids, "contract", API_HEADERS, 0),
    Check(every_response.cache_control, "contract", API_HEADERS, 0),
)
