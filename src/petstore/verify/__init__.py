"""Black-box checks of a deployment.

The checks test the promises that the service makes to clients, through the same address that clients use.

Each check is a small function that takes a `Session` and yields a `Finding` for each broken promise. `checks.py` lists
all checks. This package shares only domain constants with the service, so it can be read as a specification and can
test any other implementation.
"""
