"""Fractions and other numbers with a point that a job file may hold."""

from typing import Annotated

from pydantic import Field

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
