"""What the service claims, tried where others break: `python -m prove`, explained in docs/proofs.md."""
