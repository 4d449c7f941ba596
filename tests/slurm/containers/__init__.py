"""Stand-ins for container runtimes, for the test cluster."""
