"""Starts real services, nodes, databases, browsers, clocks and clients for tests/, prove/ and bench/."""
