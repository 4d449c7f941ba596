"""How a micro-batch is given to a model, so that documents do not see one another.

Hugging Face's models make their masks from `position_ids` where they get no `attention_mask`
(`masking_utils.find_packed_sequence_indices`, transformers 4.57 to 5.24): a token sees those of its
own document, and within that what the layer allows, such as a sliding window. Flash attention makes
lengths of documents from them instead, for a batch of one row (`_is_packed_sequence`).

Not every model hands its positions on. So a run with `packing: documents` first tries, on its own
model, whether a document's loss changes with another document in the same sample.

Legend: B samples, L tokens of a sample.
"""

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from orchestrator.errors import SpecError
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.loader import Batch
from orchestrator.trainer.packing import IGNORED
from orchestrator.trainer.world import World

# Of what another document changes without a mask, so much may come of other sums (experts).
_TOLERANCE = 0.1


def attend(batch: Batch, spec: TrainSpec) -> dict[str, Any]:
    """Return what the model is called with."""
    if batch.positions is None:
        return {"input_ids": batch.inputs, "targets": batch.targets}
    found = {
        "input_ids": batch.inputs,
        "targets": batch.targets,
        "position_ids": batch.positions,
    }
    if spec.model.attention == "flash_attention_2":
        return {name: part.reshape(1, -1) for name, part in found.items()}
    return found


@torch.no_grad()
def check_documents(model: PreTrainedModel, spec: TrainSpec, world: World) -> None:
    """See that a document does not see another one in the same sample. Collective.

    Takes three forwards of a micro-batch, eager ones also where blocks are compiled.

    Raises:
        SpecError: It does: this model makes no mask of positions.
    """
    model.eval()
    with torch.compiler.set_stance("force_eager"):
        base = _loss(model, spec, world, word=0, packed=True)
        masked = abs(_loss(model, spec, world, word=1, packed=True) - base)
        free = abs(
            _loss(model, spec, world, word=1, packed=False)
            - _loss(model, spec, world, word=0, packed=False)
        )
    reshard(model)
    model.train()
    if masked > _TOLERANCE * free:
        raise SpecError(
            f"data.packing: documents: {type(model).__name__} with attention"
            f" {spec.model.attention} lets tokens see other documents (their loss moves by"
            f" {masked:.3g}); use packing: stream, or another model.attention"
        )


def _loss(
    model: PreTrainedModel, spec: TrainSpec, world: World, *, word: int, packed: bool
) -> float:
    """Return the loss of the second half of each sample, behind a first half full of ``word``."""
    length, vocabulary = spec.data.seq_len, model.config.get_text_config().vocab_size
    half = length // 2
    index = torch.arange(length, device=world.device)
    inputs = torch.where(index < half, word, index % vocabulary)
    targets = torch.where(index < half, IGNORED, (index + 1) % vocabulary)
    positions = torch.where(index < half, index, index - half)

    def rows(row: torch.Tensor) -> torch.Tensor:
        return row.expand(spec.micro_batch, -1).contiguous()

    batch = Batch(rows(inputs), rows(targets), rows(positions) if packed else None)
    loss: torch.Tensor = model(**attend(batch, spec), divisor=1)
    return float(loss)


def reshard(model: PreTrainedModel) -> None:
    """Give back what forwards without a backward have left gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
