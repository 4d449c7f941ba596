"""The sizes of a decoder-only language model, and how many parameters follow from them. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a model.

    Attributes:
        family: Hugging Face's `model_type`.
        intermediate: Width of the MLP, or of one expert.
        kv_heads: Heads of keys and values; fewer than `heads` is grouped-query attention.
        tied: Whether the head is the embedding's own matrix.
        qkv_bias: Whether the projections to queries, keys and values have biases.
        out_bias: Whether the projection out of attention has one.
        mlp_bias: Whether those of the MLP have them.
        norms: RMS norms of a block over the hidden width.
        norms_after: Whether they follow attention and MLP, rather than go before (OLMo 2).
        qk_norm: Whether queries and keys are normed.
        across_heads: Whether all heads of them are normed together, rather than one by one.
        fp32_norm: Whether norms scale in fp32 too (Gemma), which keeps one more fp32 copy.
        experts: How many, 0 for a dense MLP.
        experts_per_token: How many of them a token goes through.
        softcap: Whether attention scores are capped (Gemma 2), which SDPA cannot do.
        windowed: How many blocks see `window` tokens back and no further.
        fused: Whether one matrix gives queries, keys and values, and one gate and up (Phi-3).
    """

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norms: int = 2
    norms_after: bool = False
    qk_norm: bool = False
    across_heads: bool = False
    fp32_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    softcap: bool = False
    windowed: int = 0
    window: int = 0
    fused: bool = False

    @property
    def query_width(self) -> int:
        """Width of the queries of all heads, and of what attention gives."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of the keys, and of the values, of all heads."""
        return self.kv_heads * self.head_dim

    @property
    def projections(self) -> dict[str, tuple[int, int, bool]]:
        """The matrices of a block by Hugging Face's name: width in, width out, bias."""
        hidden, wide = self.hidden, self.intermediate
        if self.fused:
            return {
                "qkv_proj": (hidden, self.query_width + 2 * self.kv_width, self.qkv_bias),
                "o_proj": (self.query_width, hidden, self.out_bias),
                "gate_up_proj": (hidden, 2 * wide, self.mlp_bias),
                "down_proj": (wide, hidden, self.mlp_bias),
            }
        return {
            "q_proj": (hidden, self.query_width, self.qkv_bias),
            "k_proj": (hidden, self.kv_width, self.qkv_bias),
            "v_proj": (hidden, self.kv_width, self.qkv_bias),
            "o_proj": (self.query_width, hidden, self.out_bias),
            "gate_proj": (hidden, wide, self.mlp_bias),
            "up_proj": (hidden, wide, self.mlp_bias),
            "down_proj": (wide, hidden, self.mlp_bias),
        }

    @property
    def into_attention(self) -> tuple[str, ...]:
        """Names of the projections that attention starts with."""
        return ("qkv_proj",) if self.fused else ("q_proj", "k_proj", "v_proj")

    @property
    def into_mlp(self) -> tuple[str, ...]:
        """Names of the projections that the MLP starts with."""
        return ("gate_up_proj",) if self.fused else ("gate_proj", "up_proj")

    @property
    def head_norms(self) -> tuple[int, int]:
        """Widths of the norms of queries and of keys; 0 without."""
        if not self.qk_norm:
            return 0, 0
        one = self.head_dim
        return (self.query_width, self.kv_width) if self.across_heads else (one, one)

    @property
    def attention_parameters(self) -> int:
        """Parameters of a block's attention."""
        return self._count(*self.into_attention, "o_proj") + sum(self.head_norms)

    @property
    def mlp_parameters(self) -> int:
        """Parameters of a block's MLP, or of all its experts and their router."""
        one = self._count(*self.into_mlp, "down_proj")
        return self.experts * (one + self.hidden) if self.experts else one

    def _count(self, *names: str) -> int:
        sizes = (self.projections[name] for name in names)
        return sum(fan_in * fan_out + (fan_out if bias else 0) for fan_in, fan_out, bias in sizes)

    @property
    def block(self) -> int:
        """Parameters of a decoder block."""
        return self.attention_parameters + self.mlp_parameters + self.norms * self.hidden

    @property
    def embedding(self) -> int:
        """Parameters of the embedding."""
        return self.vocab * self.hidden

    @property
    def head(self) -> int:
        """Parameters of the head, beside the embedding's."""
        return 0 if self.tied else self.embedding

    @property
    def parameters(self) -> int:
        """Parameters of the model, each counted once."""
        return self.embedding + self.layers * self.block + self.hidden + self.head

    @property
    def multiplied(self) -> int:
        """Parameters that a token is multiplied with: those of its experts, and the head."""
        idle = (self.experts - self.experts_per_token) if self.experts else 0
        one = self._count(*self.into_mlp, "down_proj")
        return self.layers * (self.block - idle * one) + self.embedding

    def flops_per_token(self, seq_len: int) -> float:
        """Return the floating point operations of forward and backward, for one token.

        Six for each parameter that multiplies it; for attention 12 for each pair of a query's
        number and a token, though a causal kernel does half of them. That is how the trainer's
        metrics, PaLM's report (appendix B) and torchtitan count.
        """
        attention = 12 * self.layers * self.query_width * seq_len
        return 6.0 * self.multiplied + attention
