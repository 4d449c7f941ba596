"""Training scripts that the tests submit."""
