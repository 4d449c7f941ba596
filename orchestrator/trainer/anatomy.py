"""The parts of a Hugging Face causal language model that sharding and initialising care about."""

from torch import nn
from transformers import PreTrainedModel

from orchestrator.errors import SpecError


def decoder_blocks(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the blocks of ``model`` by name: what Hugging Face says must not be split.

    Of those inside one another the outer ones count (Mamba), and none with the embedding in it
    does (BERT). Where the model does not say, they are the items of its largest list of modules.

    Raises:
        SpecError: The model has no such list either.
    """
    blocks = _outermost(_unsplit(model)) or _largest_list(model)
    if not blocks:
        raise SpecError(f"model: {type(model).__name__} has no decoder blocks to shard")
    return blocks


def _unsplit(model: PreTrainedModel) -> dict[str, nn.Module]:
    kinds = set(model._no_split_modules or ())
    # fully_shard gives a module a class of its own, named after the old one.
    kind = {name: type(m).__name__.removeprefix("FSDP") for name, m in model.named_modules()}
    embedding = model.get_input_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if kind[name] in kinds and embedding not in module.modules()
    }


def _outermost(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    def inside(name: str) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:length]) in modules for length in range(1, len(parts)))

    return {name: module for name, module in modules.items() if not inside(name)}


def _largest_list(model: PreTrainedModel) -> dict[str, nn.Module]:
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    sizes = {name: sum(p.numel() for p in items.parameters()) for name, items in lists.items()}
    largest = max(sizes, key=lambda name: sizes[name], default="")
    if not sizes.get(largest):
        return {}
    return {f"{largest}.{number}": block for number, block in enumerate(lists[largest])}


def ends(model: PreTrainedModel) -> list[nn.Module]:
    """Return the last norm and the head, before them what shares a parameter with the head.

    That is the embedding where they are tied; BERT's has a bias that its parent has too.

    Raises:
        SpecError: The model has no head.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise SpecError(f"model: {type(model).__name__} has no language modelling head")
    norms = [
        child
        for name, child in model.base_model.named_children()
        if "norm" in type(child).__name__.lower() or name == "ln_f"
    ]
    return [*_sharing(head, model), *norms[-1:], head]


def _sharing(part: nn.Module, model: PreTrainedModel) -> list[nn.Module]:
    own = {id(parameter) for parameter in part.parameters()}
    return [
        module
        for module in model.modules()
        if module is not part and own & {id(p) for p in module.parameters(recurse=False)}
    ]
