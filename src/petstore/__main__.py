"""Makes `python -m petstore` run the `petstore` command."""

from petstore.cli import main

main()
