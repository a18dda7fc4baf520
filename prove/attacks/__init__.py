"""Attacks by malicious clients, and their cost. There is one proof for each attack, all on loopback.

A planted fault removes the bound that the proof tests (see `altered`).
"""
