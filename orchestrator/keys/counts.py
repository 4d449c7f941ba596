"""Whole numbers of job files and profiles, with bounds that nothing real comes near.

A number beyond them is a slip of the keyboard. Without a bound it would be looped over, or reach
sbatch, which truncates some of its numbers without a word.
"""

from typing import Annotated

from pydantic import Field

MOST = 10**12
_YEARS_S = 100 * 365 * 86_400

Nodes = Annotated[int, Field(ge=1, le=65_536, strict=True)]
Gpus = Annotated[int, Field(ge=1, le=1024, strict=True)]
# Slurm keeps the CPUs of a node in 16 bits.
Cpus = Annotated[int, Field(ge=1, le=65_535, strict=True)]
Gib = Annotated[int, Field(ge=1, le=1_048_576, strict=True)]
Count = Annotated[int, Field(ge=1, le=MOST, strict=True)]
WholeNumber = Annotated[int, Field(ge=0, le=MOST, strict=True)]
Times = Annotated[int, Field(ge=1, le=10_000, strict=True)]
Seconds = Annotated[int, Field(ge=1, le=31_536_000, strict=True)]
Waits = Annotated[int, Field(ge=0, le=31_536_000, strict=True)]
LongWaits = Annotated[int, Field(ge=0, le=_YEARS_S, strict=True)]
# torch takes 64 bits; ranks add their number.
Seed = Annotated[int, Field(ge=0, le=2**62, strict=True)]
