"""From a job file to a job in the queue: read, looked over, submitted, written down. Effects."""
