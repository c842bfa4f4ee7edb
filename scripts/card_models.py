"""Three models to measure and estimate as a whole: a decoder's prefill, one step of its decoding, a vision model.

    estimate trace scripts/card_models.py:decoder_prefill --precision bf16 -o prefill.json
    collect run --gpu 0 -- python3 scripts/card_models.py decoder_prefill --passes 400

Weights are random; shapes are those of a decoder of 1.5 billion parameters (grouped queries, gated layers) and of a ResNet-50-like network.
"""

# mypy: disable-error-code="misc"
# (without PyTorch its classes are of no known type)
import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY = 28, 1536, 12, 2, 128, 8960, 32768
"""A decoder of 1.5 billion parameters with a reduced vocabulary."""

PREFILL_TOKENS = 2048
DECODE_BATCH, DECODE_CONTEXT = 32, 2048
IMAGES, PIXELS = 64, 224
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of blocks of each stage of the vision model."""


class Layer(nn.Module):
    """Attention with grouped queries and a gated feed-forward part, both after an RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.RMSNorm(WIDTH)
        self.between = nn.RMSNorm(WIDTH)
        self.queries = nn.Linear(WIDTH, HEADS * HEAD)
        self.keys_values = nn.Linear(WIDTH, 2 * KV_HEADS * HEAD)
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, INNER, bias=False)
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor, cache: torch.Tensor | None) -> torch.Tensor:
        """Hidden states of the next layer; `cache` holds keys and values of earlier tokens."""
        batch, tokens, _ = hidden.shape
        normed = self.before(hidden)
        queries = self.queries(normed).view(batch, tokens, HEADS, HEAD).transpose(1, 2)
        both = self.keys_values(normed).view(batch, tokens, 2 * KV_HEADS, HEAD).transpose(1, 2)
        if cache is not None:
            both = torch.cat((cache, both), dim=2)
        keys, values = both.split(KV_HEADS, dim=1)
        each = HEADS // KV_HEADS
        keys, values = keys.repeat_interleave(each, dim=1), values.repeat_interleave(each, dim=1)
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=cache is None)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, tokens, HEADS * HEAD))
        normed = self.between(hidden)
        return hidden + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class Decoder(nn.Module):
    """Embedding, layers, norm, and the logits of the last token."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, caches: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of the last token."""
        hidden = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, None if caches is None else caches[number])
        logits: torch.Tensor = self.head(self.norm(hidden[:, -1]))
        return logits


class Block(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 beside a shortcut, with batch norms folded in, as in inference."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(inputs, width, 1)
        self.spread = nn.Conv2d(width, width, 3, stride=stride, padding=1)
        self.widen = nn.Conv2d(width, 4 * width, 1)
        self.shortcut = nn.Conv2d(inputs, 4 * width, 1, stride=stride) if stride > 1 or inputs != 4 * width else nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Feature maps of the next block."""
        inner = torch.relu(self.spread(torch.relu(self.narrow(images))))
        return torch.relu(self.widen(inner) + self.shortcut(images))


def decoder_prefill(batch: int = 1, sequence: int = PREFILL_TOKENS, layers: int = LAYERS) -> tuple[nn.Module, tuple[Any, ...]]:
    """A prompt of 2,048 tokens through the decoder."""
    return Decoder(layers), (torch.zeros(batch, sequence, dtype=torch.long),)


def decoder_decode(batch: int = DECODE_BATCH, sequence: int = DECODE_CONTEXT, layers: int = LAYERS) -> tuple[nn.Module, tuple[Any, ...]]:
    """One new token for each of 32 sequences, against a cache of 2,047 tokens."""
    cache = torch.zeros(layers, batch, 2 * KV_HEADS, sequence - 1, HEAD)
    return Decoder(layers), (torch.zeros(batch, 1, dtype=torch.long), cache)


def vision(batch: int = IMAGES, image_size: int = PIXELS) -> tuple[nn.Module, tuple[Any, ...]]:
    """64 images of 224 x 224 pixels through 16 bottleneck blocks, in the layout of the matrix units: channels last."""
    blocks: list[nn.Module] = [nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
    inputs = 64
    for number, (width, count) in enumerate(STAGES):
        for place in range(count):
            blocks.append(Block(inputs, width, 2 if place == 0 and number else 1))
            inputs = 4 * width
    network = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))
    images = torch.zeros(batch, 3, image_size, image_size)
    return network.to(memory_format=torch.channels_last), (images.to(memory_format=torch.channels_last),)


MODELS: dict[str, Callable[..., tuple[nn.Module, tuple[Any, ...]]]] = {
    "decoder_prefill": decoder_prefill,
    "decoder_decode": decoder_decode,
    "vision": vision,
}


def run(name: str, passes: int, device: str, small: bool) -> dict[str, Any]:
    """Run `passes` passes of a model after a warm-up; returns their time [s]."""
    sizes: dict[str, int] = {}
    if small:
        sizes = {"batch": 1, "image_size": 64} if name == "vision" else {"batch": 1, "sequence": 64, "layers": 2}
    with torch.device(device):
        model, inputs = MODELS[name](**sizes)
        inputs = tuple(torch.randn_like(one) if one.is_floating_point() else torch.randint_like(one, VOCABULARY) for one in inputs)
    model = model.to(torch.bfloat16).eval()
    inputs = tuple(one.to(torch.bfloat16) if one.is_floating_point() else one for one in inputs)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    with torch.inference_mode():
        for _ in range(3):
            model(*inputs)
        wait()
        begun = time.perf_counter()
        for _ in range(passes):
            model(*inputs)
        wait()
    return {"model": name, "passes": passes, "seconds": time.perf_counter() - begun}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="So many passes of a model.")
    parser.add_argument("model", choices=tuple(MODELS))
    parser.add_argument("--passes", type=int, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="two layers, 64 tokens or pixels: to rehearse")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"PyTorch {torch.__version__} finds no GPU: install one for CUDA and for this driver (nvidia-smi), or take --device cpu")
    try:
        told = run(given.model, given.passes, given.device, given.small)
    except (RuntimeError, MemoryError) as error:  # its further lines advise on other programs
        full = isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)
        todo = "free memory: nvidia-smi and ps list who holds it" if full else "update PyTorch and the driver, or leave the model out"
        sys.exit(f"{given.model}: {(str(error) or 'not enough memory').splitlines()[0][:200]}; {todo}")
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
