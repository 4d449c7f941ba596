"""Which data: `train.data`."""

from typing import Annotated

from pydantic import Field

from orchestrator.fields import Line, Strict


class DataSpec(Strict):
    """Which text, cut into which length. Tokens are bytes (0 to 255), so no tokenizer is needed."""

    text_files: Annotated[tuple[Line, ...], Field(min_length=1)]
    seq_len: Annotated[int, Field(ge=2, le=2**30, strict=True)]
