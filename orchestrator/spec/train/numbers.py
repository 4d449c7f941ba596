"""Numbers that a job file may hold."""

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1, strict=True)]
WholeNumber = Annotated[int, Field(ge=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
