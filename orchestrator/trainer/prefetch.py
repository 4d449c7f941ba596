"""Which blocks are gathered while another one computes."""

from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.anatomy import decoder_blocks, ends


def prefetch(model: PreTrainedModel, spec: TrainSpec) -> None:
    """Have the sharded ``model`` gather `prefetch` blocks ahead, forwards and backwards.

    With 0 PyTorch's own order stays: backwards one ahead, and forwards as soon as the program has
    come to the next block, which is soon enough unless the processor is slower than the GPU.
    """
    if not spec.prefetch:
        return
    head = ends(model)[-1]
    chain = [model, *decoder_blocks(model).values(), head]
    modules = [module for module in chain if isinstance(module, FSDPModule)]
    for place, module in enumerate(modules):
        module.set_modules_to_forward_prefetch(modules[place + 1 : place + 1 + spec.prefetch])
        before = modules[max(place - spec.prefetch, 1) : place] if place else []
        module.set_modules_to_backward_prefetch(before[::-1])
