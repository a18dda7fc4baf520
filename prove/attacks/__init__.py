"""What clients who mean harm can do, and what it costs: one proof for each attack, all on loopback.

A planted fault is the service without the bound that the proof is about: see `altered`.
"""
