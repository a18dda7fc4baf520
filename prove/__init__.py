"""Tests the service's guarantees under faults and attacks: `python -m prove`. See prove/README.md."""
