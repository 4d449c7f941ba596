"""How fast the ranks of a job talk to one another, and who slows them down. Pure.

The figures are made by `orchestrator.preflight.sweep` on the nodes and kept in
attempts/N/bandwidth.json; what follows from them is worked out whenever they are read.
"""

from orchestrator.bandwidth.finding import Finding, find
from orchestrator.bandwidth.formulas import algorithm_gbs, bus_gbs
from orchestrator.bandwidth.record import Measurement, Pair, Record
from orchestrator.bandwidth.tournament import chosen_rounds, rounds

__all__ = [
    "Finding",
    "Measurement",
    "Pair",
    "Record",
    "algorithm_gbs",
    "bus_gbs",
    "chosen_rounds",
    "find",
    "rounds",
]
