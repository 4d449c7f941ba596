"""What the logs of an attempt say about its end.

`errors` and `logs` are tables of patterns; `scan` finds them in text, `reports` and `tracebacks`
read what torchrun and Python print; all of these are pure. `reading` takes bounded pieces of the
files of an attempt and hands back findings, the root cause first.
"""
