"""Commands that build and check documents, references, packages and images."""
