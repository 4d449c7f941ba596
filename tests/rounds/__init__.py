"""Rounds of watchers that are killed, around a Slurm that is a directory.

`clock`, `jobs` and `commands` are that Slurm, `watcher` is what gets killed, `scene` what it finds,
`rounds` does it all once, and `check` judges from the journal alone.
"""
