"""What a cluster says of itself, as a site profile in which each value has its evidence."""
