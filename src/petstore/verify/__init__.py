"""Black-box checks of a deployment: what clients were promised, tested through the address that clients use.

Each check is a small function that receives a `Session` and yields a `Finding` for each broken promise. `checks.py` has
the table of all checks. This package shares nothing with the service except the constants of the domain, so it can be
read as a specification and can grade any other implementation.
"""
