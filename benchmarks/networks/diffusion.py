"""The networks of Stable Diffusion 1.5 and XL base, without weights, for `estimate trace` and `benchmarks/boards.py`.

From the published configurations (runwayml/stable-diffusion-v1-5, stabilityai/stable-diffusion-xl-base-1.0): 859.5 and 2,567 million
parameters.  The sequence of operators is that of an eager run of diffusers 0.29: what copies, adds and divides by one there does so here.
"""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SCALE = 1.0
"""What diffusers divides the results of attention and of residual blocks by [1]."""


class Attention(nn.Module):
    """Attention of x to `context`, or to itself."""

    def __init__(self, width: int, context: int, heads: int, *, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=bias)
        self.key, self.value = (nn.Linear(context, width, bias=bias) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Shapes (batch, tokens, width), (batch, tokens, context)."""
        parts = (layer(own) for layer, own in ((self.query, x), (self.key, context), (self.value, context)))
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        found: Tensor = self.out(functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape))
        return found / SCALE


class Block(nn.Module):
    """Self-attention, attention to the text, and a gated feed-forward layer."""

    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.text = Attention(width, width, heads), Attention(width, context, heads)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """Shapes as of Attention."""
        normed = self.norms[0](x)
        x = self.own(normed, normed) + x
        x = self.text(self.norms[1](x), text) + x
        values, gate = self.up(self.norms[2](x)).chunk(2, dim=-1)
        result: Tensor = self.down(values * functional.gelu(gate)) + x
        return result


class Transformer(nn.Module):
    """Blocks over the pixels of an image; linear: projections after the pixels became tokens."""

    def __init__(self, width: int, context: int, heads: int, depth: int, *, linear: bool) -> None:
        super().__init__()
        self.norm, self.linear = nn.GroupNorm(32, width, eps=1e-6), linear
        self.enter, self.leave = (nn.Linear(width, width) if linear else nn.Conv2d(width, width, 1) for _ in range(2))
        self.blocks = nn.ModuleList(Block(width, context, heads) for _ in range(depth))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """Shapes (batch, width, height, width), (batch, tokens, context)."""
        x, size = self.norm(image), image.shape[2:]
        x = self.enter(x.permute(0, 2, 3, 1).flatten(1, 2)) if self.linear else self.enter(x).permute(0, 2, 3, 1).flatten(1, 2)
        for block in self.blocks:
            x = block(x, text)
        if self.linear:
            return self.leave(x).unflatten(1, size).permute(0, 3, 1, 2).contiguous() + image
        result: Tensor = self.leave(x.unflatten(1, size).permute(0, 3, 1, 2).contiguous()) + image
        return result


class Residual(nn.Module):
    """Two convolutions with group norms; embedding: width of the time's embedding, 0 for none."""

    def __init__(self, before: int, after: int, embedding: int = 0, eps: float = 1e-5) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, width, eps=eps) for width in (before, after))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, after, 3, padding=1) for width in (before, after))
        self.time = nn.Linear(embedding, after) if embedding else None
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else None

    def forward(self, image: Tensor, time: Tensor | None = None) -> Tensor:
        """Shapes (batch, before, height, width), (batch, embedding)."""
        x = self.convolutions[0](functional.silu(self.norms[0](image)))
        if self.time is not None and time is not None:
            x = x + self.time(functional.silu(time))[:, :, None, None]
        x = self.convolutions[1](functional.silu(self.norms[1](x)))
        result: Tensor = ((image if self.shortcut is None else self.shortcut(image)) + x) / SCALE
        return result


SIZE_WAVES = 256
"""Waves of each of the six numbers that tell the UNet of XL sizes and crops of an image."""


def doubled(image: Tensor) -> Tensor:
    """The image at twice its size, by the nearest pixels."""
    return functional.interpolate(image, scale_factor=2.0, mode="nearest")


def waves(numbers: Tensor, width: int) -> Tensor:
    """Cosines and sines of numbers at frequencies from 1 to 1/10,000; shapes (n,) and (n, width)."""
    exponent = -math.log(10000.0) * torch.arange(width // 2, dtype=torch.float32, device=numbers.device)
    angle = SCALE * (numbers[:, None].float() * torch.exp(exponent / (width // 2)))
    both = torch.cat([torch.sin(angle), torch.cos(angle)], dim=-1)
    return torch.cat([both[:, width // 2 :], both[:, : width // 2]], dim=-1)


class Unet(nn.Module):
    """A UNet with attention to a text; depths: transformer blocks by level; added: width of further conditions, 0 for none."""

    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...], heads: tuple[int, ...], context: int, added: int = 0) -> None:
        super().__init__()
        time, linear, self.width = 4 * widths[0], added > 0, widths[0]
        self.time = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time))
        self.added = nn.Sequential(nn.Linear(added, time), nn.SiLU(), nn.Linear(time, time)) if added else None
        self.enter = nn.Conv2d(4, widths[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        kept = [widths[0]]

        def attention(level: int) -> nn.Module | None:
            return Transformer(widths[level], context, heads[level], depths[level], linear=linear) if depths[level] else None

        for level, width in enumerate(widths):
            for _ in range(2):
                self.down.append(nn.ModuleList([Residual(kept[-1], width, time), attention(level) or nn.Identity()]))
                kept.append(width)
            if level < len(widths) - 1:
                self.down.append(nn.ModuleList([nn.Conv2d(width, width, 3, stride=2, padding=1)]))
                kept.append(width)
        middle = max(depths[-1], 1)
        self.middle = nn.ModuleList([Residual(widths[-1], widths[-1], time), Residual(widths[-1], widths[-1], time)])
        self.between = Transformer(widths[-1], context, heads[-1], middle, linear=linear)
        current = widths[-1]
        for level in reversed(range(len(widths))):
            for _ in range(3):
                self.up.append(nn.ModuleList([Residual(current + kept.pop(), widths[level], time), attention(level) or nn.Identity()]))
                current = widths[level]
            if level:
                self.up.append(nn.ModuleList([nn.Conv2d(current, current, 3, padding=1)]))
        self.norm, self.leave = nn.GroupNorm(32, widths[0]), nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, image: Tensor, time: Tensor, text: Tensor, pooled: Tensor | None = None, sizes: Tensor | None = None) -> Tensor:
        """Shapes (batch, 4, height, width), (batch,), (batch, tokens, context), and of further conditions (batch, ·), (batch, 6)."""
        embedding = self.time(waves(time, self.width).to(image.dtype))
        if self.added is not None and pooled is not None and sizes is not None:
            told = torch.cat([pooled, waves(sizes.flatten(), SIZE_WAVES).reshape(len(pooled), -1)], dim=-1)
            embedding = embedding + self.added(told.to(image.dtype))
        x = self.enter(image)
        kept = [x]
        for step in self.down:
            x = self._run(step, x, embedding, text)
            kept.append(x)
        x = self.middle[1](self.between(self.middle[0](x, embedding), text), embedding)
        for step in self.up:
            x = step[0](doubled(x)) if len(step) == 1 else self._run(step, torch.cat([x, kept.pop()], dim=1), embedding, text)
        result: Tensor = self.leave(functional.silu(self.norm(x)))
        return result

    @staticmethod
    def _run(step: Any, x: Tensor, embedding: Tensor, text: Tensor) -> Tensor:
        if len(step) == 1:
            only: Tensor = step[0](x)
            return only
        x = step[0](x, embedding)
        return step[1](x, text) if isinstance(step[1], Transformer) else x


class Decoder(nn.Module):
    """The decoder of the autoencoder: from 4 channels to an image of eight times the size."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 512, 3, padding=1))
        self.middle = nn.ModuleList(Residual(512, 512, eps=1e-6) for _ in range(2))
        self.norm, self.attention = nn.GroupNorm(32, 512, eps=1e-6), Attention(512, 512, 1, bias=True)
        self.up = nn.ModuleList()
        for level, (before, after) in enumerate(pairwise((512, 512, 512, 256, 128))):
            self.up.extend(Residual(before if first else after, after, eps=1e-6) for first in (True, False, False))
            if level < 3:
                self.up.append(nn.Conv2d(after, after, 3, padding=1))
        self.leave = nn.Sequential(nn.GroupNorm(32, 128, eps=1e-6), nn.SiLU(), nn.Conv2d(128, 3, 3, padding=1))

    def forward(self, latent: Tensor) -> Tensor:
        """Shape (batch, 4, height, width)."""
        x = self.middle[0](self.enter(latent))
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        x = self.attention(tokens, tokens).transpose(1, 2).reshape(x.shape) + x
        x = self.middle[1](x)
        for step in self.up:
            x = step(doubled(x)) if isinstance(step, nn.Conv2d) else step(x)
        result: Tensor = self.leave(x)
        return result


Job = tuple[nn.Module, dict[str, Tensor]]


def sd15_unet(batch: int) -> Job:
    """The UNet of Stable Diffusion 1.5 at 512 × 512 pixels."""
    model = Unet((320, 640, 1280, 1280), (1, 1, 1, 0), (8, 8, 8, 8), 768)
    return model, {"image": torch.randn(batch, 4, 64, 64), "time": torch.ones(batch), "text": torch.randn(batch, 77, 768)}


def sdxl_unet(batch: int) -> Job:
    """The UNet of Stable Diffusion XL base at 1024 × 1024 pixels."""
    model = Unet((320, 640, 1280), (0, 2, 10), (5, 10, 20), 2048, added=1280 + 6 * SIZE_WAVES)
    inputs = {"image": torch.randn(batch, 4, 128, 128), "time": torch.ones(batch), "text": torch.randn(batch, 77, 2048)}
    return model, inputs | {"pooled": torch.randn(batch, 1280), "sizes": torch.ones(batch, 6)}


class Step(nn.Module):
    """Between two UNets: guidance, a linear multi-step method of order four, and the images for the next UNet."""

    def forward(self, image: Tensor, noise: Tensor, before: Tensor) -> Tensor:
        """Shapes (batch, 4, height, width), (2 · batch, 4, ·, ·), (3, batch, 4, ·, ·): noise of the last three steps."""
        free, told = noise.chunk(2)
        now = free + 7.5 * (told - free)
        first, second, third = before
        mean = (1 / 24) * (55 * now - 59 * first + 37 * second - 9 * third)
        return torch.cat([1.01 * image - 0.02 * mean / SCALE] * 2)


def sd15_step(batch: int) -> Job:
    """From one UNet of Stable Diffusion 1.5 to the next."""
    image, past = torch.randn(batch, 4, 64, 64), torch.randn(3, batch, 4, 64, 64)
    return Step(), {"image": image, "noise": torch.randn(2 * batch, 4, 64, 64), "before": past}


def sd15_vae(batch: int) -> Job:
    """The decoder for 512 × 512 pixels."""
    return Decoder(), {"latent": torch.randn(batch, 4, 64, 64)}


def sdxl_vae(batch: int) -> Job:
    """The decoder for 1024 × 1024 pixels."""
    return Decoder(), {"latent": torch.randn(batch, 4, 128, 128)}
