"""What builds and checks documents, references, packages and images."""
