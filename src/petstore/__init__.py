"""Petstore: an HTTP and JSON pet store service whose contract holds to the letter."""

__version__ = "1.0.0"
