"""What a training run will need and how fast it will be, before anything is started.

Nothing here imports torch: it runs on a login node. The flow is config -> shape -> workload ->
memory, speed and saves -> layouts -> forecast -> text.

Legend: B sequences of a micro-batch, L tokens of a sequence, T = B x L, V words of the vocabulary.
"""

from orchestrator.planner.forecast import Forecast, forecast
from orchestrator.planner.text import lines

__all__ = ["Forecast", "forecast", "lines"]
