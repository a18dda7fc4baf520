"""Black-box checks of a deployment.

The checks connect to the same address as clients, and test the promises that the service makes to them.

Each check is a small function that takes a `Session` and yields a `Finding` for each broken promise. `checks.py` lists
all checks. Apart from the domain modules, this package shares no code with the service, so it can be read as a
specification and can test other implementations.
"""
