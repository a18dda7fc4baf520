"""Black-box checks of a deployment. They test its promises to clients through the address that clients use.

Each check is a small function that takes a `Session` and yields a `Finding` for each broken promise. `checks.py` has a
table of all checks. This package uses only the service's domain constants, so it can be read as a specification
and can test any other implementation.
"""
