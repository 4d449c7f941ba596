"""Look at runs, decide, act, and again; and what a user asks of a run. Effects."""
