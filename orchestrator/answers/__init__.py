"""What stands behind commands that answer: how a run is, why it failed, what a job will need."""
