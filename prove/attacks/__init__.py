"""Attacks by malicious clients, and what they cost the service. Each attack is one proof, and runs on loopback.

A planted fault removes the bound that the proof tests (see `altered`).
"""
