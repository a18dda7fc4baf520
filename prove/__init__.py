"""Tests the guarantees of the service under faults and attacks: `python -m prove`. See prove/README.md."""
