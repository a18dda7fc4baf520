"""`python -m petstore` is the `petstore` command."""

from petstore.cli import main

main()
