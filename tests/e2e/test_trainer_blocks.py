"""What is done to blocks, on one rank: computed again, compiled, in FP8; and utilization."""

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch._dynamo.utils import counters  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from orchestrator.errors import SpecError  # noqa: E402
from orchestrator.spec.train import TrainSpec  # noqa: E402
from orchestrator.trainer import precision  # noqa: E402
from orchestrator.trainer.compiling import compile_blocks, describe_compilation  # noqa: E402
from orchestrator.trainer.garbage import collect_seldom  # noqa: E402
from orchestrator.trainer.recompute import checkpoint_blocks  # noqa: E402
from orchestrator.trainer.utilization import flops_per_token, peak_flops  # noqa: E402

pytestmark = pytest.mark.e2e

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 8},
    "gemma2": {**LLAMA, "model_type": "gemma2", "head_dim": 8},
    "mixtral": {**LLAMA, "model_type": "mixtral", "num_local_experts": 4},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 64,
        "vocab_size": 256,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
}
TOKENS = torch.arange(34).reshape(2, 17)


def spec_of(**changes: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "model": {"config": LLAMA},
            "data": {"text_files": ["x"], "seq_len": 16},
            "steps": 1,
            "global_batch": 1,
            **changes,
        }
    )


def build(config: dict[str, Any], *, device: str = "cpu", attention: str = "eager") -> Any:
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**config), dtype=torch.float32, attn_implementation=attention
        )
    return model.train()


def step(model: Any) -> dict[str, Any]:
    """Return the gradients of a step, and the loss."""
    logits = model(input_ids=TOKENS[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten())
    loss.backward()
    return {"loss": loss, **{key: p.grad for key, p in model.named_parameters()}}


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.calls[name] = self.calls.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


# -- computed again --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["full", "selective"])
@pytest.mark.parametrize("name", MODELS)
def test_same_gradients_under_the_same_names(name: str, how: str) -> None:
    model, plain = build(MODELS[name]), build(MODELS[name])
    checkpoint_blocks(model, spec_of(activation_checkpointing=how))
    assert list(dict(model.named_modules())) == list(dict(plain.named_modules()))
    torch.manual_seed(1)
    found = step(model)
    torch.manual_seed(1)
    wanted = step(plain)
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        assert torch.equal(found[key], value), key


def again(how: str) -> tuple[int, int]:
    """Return how many products and how many attentions a block computes a second time."""

    def calls(how: str) -> dict[str, int]:
        model = build(LLAMA, attention="sdpa")
        checkpoint_blocks(model, spec_of(activation_checkpointing=how))
        counted = Counted()
        with counted:
            step(model)
        return counted.calls

    plain, found = calls("off"), calls(how)
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    return (found["mm"] - plain["mm"]) // 3, (found[attention] - plain[attention]) // 3


def test_what_is_computed_again() -> None:
    """A block has seven products. The last one's result is asked for by nobody on the way back."""
    assert again("full") == (6, 1)
    products, attentions = again("selective")
    assert products in (2, 3)
    assert attentions == 0


def test_nothing_is_kept_without_gradients() -> None:
    model = build(LLAMA)
    checkpoint_blocks(model, spec_of(activation_checkpointing="selective"))
    counted = Counted()
    with torch.no_grad(), counted:
        model(input_ids=TOKENS, use_cache=False)
    assert "detach" not in counted.calls  # what is kept is kept detached


# -- compiled --------------------------------------------------------------------------------------


# PyTorch hides this warning from people by a filter of its own, which an error passes by.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("llama", "off"),
        ("llama", "selective"),
        ("gemma2", "off"),
        ("mixtral", "selective"),
        ("gpt2", "full"),
    ],
)
def test_one_graph_for_all_blocks_and_no_break(name: str, how: str) -> None:
    torch._dynamo.reset()
    counters.clear()
    model, plain = build(MODELS[name]), build(MODELS[name])
    spec = spec_of(compile=True, activation_checkpointing=how, deterministic=False)
    for each in (model, plain):
        each.eval()  # dropout draws other numbers in a graph
    checkpoint_blocks(model, spec)
    compile_blocks(model, spec, backend="aot_eager")
    assert list(model.state_dict()) == list(plain.state_dict())
    found, wanted = step(model), step(plain)
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6)
    kinds = len(set(getattr(model.config, "layer_types", None) or ["full"]))
    assert counters["stats"]["unique_graphs"] <= kinds
    assert describe_compilation().startswith(f"compiled {counters['stats']['unique_graphs']} graph")
    assert "uncompiled" not in describe_compilation()


def test_what_breaks_a_graph_is_told() -> None:
    torch._dynamo.reset()
    counters.clear()

    def broken(x: Any) -> Any:
        torch._dynamo.graph_break()
        return x + 1

    torch.compile(broken, backend="eager")(torch.ones(2))
    assert "uncompiled in 1 places" in describe_compilation()


# -- FP8 -------------------------------------------------------------------------------------------


def test_fp8_wants_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, model = spec_of(fp8="rowwise", compile=True), build(LLAMA, device="meta")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SpecError, match="there is none here"):
        precision.to_float8(model, spec)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-SXM4-80GB")
    with pytest.raises(SpecError, match="not NVIDIA A100"):
        precision.to_float8(model, spec)


def test_fp8_wants_torchao_and_even_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, model = spec_of(fp8="rowwise", compile=True), build(LLAMA, device="meta")
    monkeypatch.setattr(precision, "check_device", lambda: None)
    monkeypatch.setitem(__import__("sys").modules, "torchao.float8", None)
    with pytest.raises(SpecError, match="torchao cannot be imported"):
        precision.to_float8(model, spec)
    odd = spec_of(
        fp8="rowwise", compile=True, data={"text_files": ["x"], "seq_len": 15}, micro_batch=1
    )
    with pytest.raises(SpecError, match="micro_batch 1 x seq_len 15"):
        precision.to_float8(model, odd)
    precision.to_float8(model, spec_of())  # off: nothing is asked for


def test_which_layers_multiply_in_fp8() -> None:
    model = build(LLAMA, device="meta")
    layer = model.model.layers[0]
    layer.mlp.gate = torch.nn.Linear(32, 3, device="meta")  # as a router of experts is called
    layer.self_attn.q_proj.lora_A = torch.nn.Linear(32, 4, device="meta")
    wanted = precision.float8_layers(model)
    assert len(wanted) == 3 * 7
    assert {name.split(".")[-1] for name in wanted} == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }
    odd = build({**LLAMA, "intermediate_size": 40}, device="meta")
    with pytest.raises(SpecError, match=r"gate_proj is 40 x 32; .* multiples of 16"):
        precision.float8_layers(odd)


def test_torchao_is_told_recipe_and_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for torchao: this machine has neither it nor a GPU for it."""
    seen: dict[str, Any] = {}

    class Config:
        @staticmethod
        def from_recipe_name(name: str) -> str:
            return f"recipe {name}"

    class Torchao:
        Float8LinearConfig = Config

        @staticmethod
        def convert_to_float8_training(model: Any, *, module_filter_fn: Any, config: Any) -> None:
            seen["names"] = {n for n, m in model.named_modules() if module_filter_fn(m, n)}
            seen["config"] = config

    monkeypatch.setattr(precision, "check_device", lambda: None)
    monkeypatch.setattr(precision, "_torchao", lambda: Torchao)
    model = build(LLAMA, device="meta")
    precision.to_float8(model, spec_of(fp8="tensorwise", compile=True))
    assert seen == {"names": precision.float8_layers(model), "config": "recipe tensorwise"}
    assert "lm_head" not in seen["names"]


# -- utilization, garbage --------------------------------------------------------------------------


def test_operations_of_a_token() -> None:
    block = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48 + 2 * 32
    attention = 3 * 12 * 32 * 100
    head, norm = 256 * 32, 32
    untied = build(LLAMA, device="meta")
    wanted = 6 * (3 * block + head + norm) + attention
    assert flops_per_token(untied, seq_len=100) == wanted
    tied = build({**LLAMA, "tie_word_embeddings": True}, device="meta")
    assert flops_per_token(tied, seq_len=100) == wanted  # the table is the head
    untied.model.requires_grad_(False)
    assert flops_per_token(untied, seq_len=100) == wanted - 2 * (3 * block + norm)


def test_operations_of_experts_and_windows() -> None:
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    few, many = (
        flops_per_token(build({**MODELS["mixtral"], **experts, **more}, device="meta"), seq_len=64)
        for more in ({}, {"num_experts_per_tok": 4})
    )
    assert many - few == 6 * 3 * 2 * (3 * 32 * 48)  # two experts more in each of three layers
    gemma = {**MODELS["gemma2"], "sliding_window": 10, "num_hidden_layers": 2}
    short, long = (flops_per_token(build(gemma, device="meta"), seq_len=n) for n in (10, 30))
    assert long - short == 12 * 32 * 20  # one layer of the two sees more


def test_operations_of_a_model_without_attention() -> None:
    """A Mamba could not be trained, since its configuration has no heads to count."""
    mamba = {"model_type": "mamba", "hidden_size": 32, "state_size": 4, "num_hidden_layers": 1}
    model = build({**mamba, "vocab_size": 256, "tie_word_embeddings": True}, device="meta")
    count = sum(parameter.numel() for parameter in model.parameters())
    assert flops_per_token(model, seq_len=10) == flops_per_token(model, seq_len=100) == 6 * count


@pytest.mark.parametrize(
    ("gpu", "rate"),
    [
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA GH200 480GB", 989.4e12),
        ("NVIDIA GB200", 2.5e15),
        ("Quadro T1000", None),
    ],
)
def test_peaks(gpu: str, rate: float | None) -> None:
    assert peak_flops(gpu) == rate


def test_garbage_waits_for_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    with collect_seldom() as collect:
        assert not gc.isenabled()
        monkeypatch.setattr(gc, "collect", lambda *generation: seen.append(generation))
        for done in range(1, 101):
            collect(done)
    assert seen == [(1,), (1,)]
    assert gc.isenabled()
