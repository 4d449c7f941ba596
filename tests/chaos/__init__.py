"""A seeded storm of faults over several runs on the real test cluster, and a judge of the result.

schedule (which faults, pure) -> runner (when) -> faults (how) -> judge (what came of it, pure)
"""
