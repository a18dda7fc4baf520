"""Petstore: an HTTP and JSON pet store service."""

__version__ = "1.0.0"
