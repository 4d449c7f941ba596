"""What a user writes: the job file, and the reference trainer's part of it."""
