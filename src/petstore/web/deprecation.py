"""Announces an operation's deprecation in response headers, the 410 response and the OpenAPI document."""

from email.utils import format_datetime

from petstore.operations import Deprecation
from petstore.web.replies import Lines, line


def deprecation_headers(deprecation: Deprecation, base_url: str) -> Lines:
    """Returns the headers that every response of the operation includes, regardless of its status."""
    values = deprecation_values(deprecation, base_url)
    return (
        line("deprecation", values["deprecation"])
        + line("sunset", values["sunset"])
        + line("link", values["successor_link"])
        + line("link", values["docs_link"])
    )


def deprecation_values(deprecation: Deprecation, base_url: str) -> dict[str, str]:
    """Returns the values for the placeholders in the OpenAPI document."""
    return {
        "deprecation": f"@{deprecation.since.timestamp():.0f}",
        "sunset": format_datetime(deprecation.sunset, usegmt=True),
        "sunset_day": deprecation.sunset_day,
        "successor_link": f'<{base_url}{deprecation.successor}>; rel="successor-version"',
        "docs_link": '</docs>; rel="deprecation"',
        "replacement": deprecation.replacement,
        "gone": gone_message(deprecation),
    }


def gone_message(deprecation: Deprecation) -> str:
    return f"This operation was removed on {deprecation.sunset_day}; use {deprecation.replacement}."
