"""A small Llama: RMSNorm, rotary embedding, causal attention, SwiGLU, tied embedding.

Shapes in the comments: B rows, T positions, D width, H heads, E = D / H, V vocabulary.
The architecture is that of Touvron et al. 2023 (arXiv:2302.13971); rotary embedding after Su et
al. 2021 (arXiv:2104.09864), in the half-split layout that Hugging Face uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of a layer, (B, H, T, E) each."""

Cache = list[KeysValues]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that fix one model."""

    vocab: int
    layers: int
    width: int
    heads: int
    hidden: int
    context: int = 1024
    theta: float = 10000.0
    eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Return the width of one attention head, E."""
        return self.width // self.heads


def target_shape(vocab: int) -> Shape:
    """Return the shape of the verifier's model: about five million parameters."""
    return Shape(vocab=vocab, layers=6, width=256, heads=4, hidden=640)


def drafter_shape(vocab: int) -> Shape:
    """Return the shape of the drafter's model: just under a sixth of the target."""
    return Shape(vocab=vocab, layers=3, width=128, heads=2, hidden=320)


def rotary_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each (context, E). Both halves of a head share frequencies."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    positions = torch.arange(shape.context, dtype=torch.float32)
    angle = torch.outer(positions, shape.theta**-half)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate (B, H, T, E) by the angles of (T, E)."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return x * cos + turned * sin


class Norm(nn.Module):
    """Root-mean-square norm with a learnt gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., D) normed."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """Causal multi-head attention; with a cache it also writes and reads earlier positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: KeysValues | None, start: int
    ) -> Tensor:
        """Return the attention (B, T, D) of (B, T, D) to itself and to the cache."""
        q = rotate(self._split(self.q_proj(x)), cos, sin)  # (B, H, T, E)
        k = rotate(self._split(self.k_proj(x)), cos, sin)
        v = self._split(self.v_proj(x))
        causal = True
        if past is not None:
            end = start + x.shape[1]
            keys, values = past
            keys[:, :, start:end] = k
            values[:, :, start:end] = v
            k = keys[:, :, :end]
            v = values[:, :, :end]
            # One new position sees all earlier ones; several are only ever given at start 0.
            causal = x.shape[1] > 1
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        joined = out.transpose(1, 2).reshape(x.shape)
        return self.o_proj(joined)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and SwiGLU, each on a normed residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.width, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.width, shape.eps)
        self.gate_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down_proj = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: KeysValues | None, start: int
    ) -> Tensor:
        """Return the residual stream (B, T, D) after this block."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, past, start)
        h = self.post_attention_layernorm(x)
        gate = F.silu(self.gate_proj(h))
        out: Tensor = x + self.down_proj(gate * self.up_proj(h))
        return out


class Llama(nn.Module):
    """Token ids (B, T) to logits (B, T, V); the embedding is also the output matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width, shape.eps)
        cos, sin = rotary_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._init()

    def _init(self) -> None:
        for name, weight in self.named_parameters():
            if weight.ndim < 2:
                continue
            # Zero output projections make every block the identity at first, which is stable
            # at the large steps of Muon.
            std = 0.02
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                std = 0.0
            nn.init.normal_(weight, std=std)

    def forward(self, ids: Tensor, cache: Cache | None = None, start: int = 0) -> Tensor:
        """Return logits (B, T, V) of ids (B, T) that begin at position `start`."""
        end = start + ids.shape[1]
        cos = self.cos[start:end]  # type: ignore[index]
        sin = self.sin[start:end]  # type: ignore[index]
        x = self.embed(ids)
        for number, layer in enumerate(self.layers):
            past = None
            if cache is not None:
                past = cache[number]
            x = layer(x, cos, sin, past, start)
        return F.linear(self.norm(x), self.embed.weight)

    def new_cache(self, rows: int, length: int) -> Cache:
        """Return empty keys and values, (rows, H, length, E) for each layer."""
        size = (rows, self.shape.heads, length, self.shape.head_dim)
        cache: Cache = []
        for _ in self.layers:
            cache.append((torch.zeros(size), torch.zeros(size)))
        return cache

    def parameter_count(self) -> int:
        """Return the number of weights, the tied matrix counted once."""
        return sum(map(torch.numel, self.parameters()))
