"""What is in a run directory: the names of its files, and the values that runs write there.

Low down, for nodes and ranks use it too. What fsdpq itself writes and reads there: `runstore`.
"""
