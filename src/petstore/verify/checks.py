"""The table of checks. Each check's docstring is the promise that it tests.

Checks of the level `spec` cover what the specification requires of every implementation. Checks of the level `contract`
cover promises that a deployment can break (see "Check, test or proof" in CONTRIBUTING.md).
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from petstore.verify import (
    authentication,
    caching,
    connections,
    cors,
    creating,
    every_response,
    getting,
    idempotency,
    limits,
    listing,
    methods,
    nodes,
    paging,
    paths,
    preferences,
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
    requests: int  # the maximum number of requests, excluding those sent with the limit key
    per_address: int = 0  # additional requests for each address
    per_pair: int = 0  # additional requests for each pair of addresses
    needs: tuple[Need, ...] = ()

    @property
    def topic(self) -> str:
        """Returns the name of the module that contains the check."""
        return self.run.__module__.rpartition(".")[2]

    @property
    def name(self) -> str:
        return f"{self.topic}.{self.run.__name__}"

    @property
    def promise(self) -> str:
        return self.run.__doc__ or ""

    def most_requests(self, addresses: int) -> int:
        return self.requests + self.per_address * addresses + self.per_pair * addresses * (addresses - 1)


CHECKS = (
    Check(authentication.missing_key, "spec", 3),
    Check(authentication.unknown_key, "spec", 1),
    Check(authentication.other_scheme, "spec", 1),
    Check(authentication.challenge, "contract", 2),
    Check(authentication.two_keys, "contract", 1),
    # Add animals first, so that the lists are not empty.
    Check(creating.created, "spec", 3, needs=("write",)),
    Check(creating.status_optional, "spec", 1, needs=("write",)),
    Check(creating.fetched, "spec", 2, needs=("write",)),
    Check(creating.missing_fields, "spec", 3, needs=("write",)),
    Check(creating.invalid_values, "spec", len(creating.INVALID_VALUES), needs=("write",)),
    Check(creating.stored_as_sent, "contract", 1, needs=("write",)),
    Check(creating.location, "contract", 1, needs=("write",)),
    Check(creating.added_once, "contract", 3, needs=("write",)),
    Check(creating.visible_at_once, "contract", 19, needs=("write",)),
    Check(idempotency.replay, "contract", 2, needs=("write",)),
    Check(idempotency.parallel, "contract", 8, needs=("write",)),
    Check(listing.array, "spec", 1),
    Check(listing.limit, "spec", 2),
    Check(listing.limit_maximum, "spec", 1),
    Check(listing.status_filter, "spec", 3),
    Check(paging.complete, "contract", 8),
    Check(paging.link_address, "contract", 1),
    Check(caching.strong_tag, "contract", 2),
    Check(caching.not_modified, "contract", 4),
    Check(caching.tag_changes, "contract", 4, needs=("write",)),
    Check(caching.not_cached, "contract", 2),
    Check(caching.not_compressed, "contract", 1),
    Check(getting.found, "spec", 2),
    Check(getting.unknown, "spec", 1),
    Check(getting.deprecation, "contract", 3),
    Check(methods.head, "contract", 4),
    Check(methods.options, "contract", 1),
    Check(methods.other_methods, "contract", 2, needs=("write",)),
    Check(paths.unknown, "contract", 1),
    Check(paths.slashes, "contract", 3),
    Check(paths.dot_segments, "contract", 3),
    Check(paths.encoded_slash, "contract", 2),
    Check(preferences.strict_handling, "contract", 2),
    Check(preferences.error_on_demand, "contract", len(preferences.CODES), needs=("errors on demand",)),
    Check(preferences.retry_after, "contract", 1, needs=("errors on demand",)),
    Check(connections.pipelining, "contract", 3),
    Check(connections.expect_continue, "contract", 1, needs=("write",)),
    Check(connections.chunked_body, "contract", 1, needs=("write",)),
    Check(connections.largest_body, "contract", 1, needs=("write",)),
    Check(connections.body_too_large, "contract", 2, needs=("write",)),
    Check(connections.malformed, "contract", 1),
    Check(connections.long_target, "contract", 1),
    Check(cors.exposed_headers, "contract", 2),
    Check(limits.every_request_counts, "contract", 5),
    Check(nodes.visible_everywhere, "contract", 0, 5, 2, needs=("addresses", "write")),
    Check(nodes.same_counters, "contract", 0, 2, needs=("addresses",)),
    Check(nodes.same_tags, "contract", 0, 1, needs=("addresses",)),
    Check(nodes.same_cursors, "contract", 1, 2, needs=("addresses",)),
    Check(nodes.same_time, "contract", 0, 4, needs=("addresses",)),
    Check(limits.exact, "spec", 0, needs=("limit key",)),
    Check(limits.refusal, "spec", 0, needs=("limit key",)),
    Check(limits.refusal_headers, "contract", 0, needs=("limit key",)),
    Check(limits.retry_after, "spec", 0, needs=("limit key",)),
    # These checks come last, because they examine the responses that all other checks have received.
    Check(every_response.rate_limit_headers, "spec", 0),
    Check(every_response.rate_limit_values, "spec", 0),
    Check(every_response.error_bodies, "spec", 0),
    Check(every_response.rate_limit_headers_once, "contract", 0),
    Check(every_response.errors_exactly, "contract", 0),
    Check(every_response.request_ids, "contract", 0),
    Check(every_response.cache_control, "contract", 0),
)
