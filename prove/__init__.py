"""What the service claims, tried where others break: `python -m prove`, explained in prove/README.md."""
