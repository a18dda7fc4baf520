"""Petstore: a pet store service with a JSON API over HTTP."""

__version__ = "1.0.0"
