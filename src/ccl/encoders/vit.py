"""A small vision transformer whose tokens are patches, all of an image or only those that are shown."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_PATCH_SIZES = {"cifar": 4, "imagenet": 16}  # pixels, by the stem
_HEAD_WIDTH = 64  # channels of an attention head, as published


class Block(nn.Module):
    """Attention among the tokens, then a layer of four times the width for each; norms come first."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(tokens)).unflatten(2, (3, self.num_heads, -1))  # (N, L, 3, heads, ·)
        found = F.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4).unbind(0))  # (N, heads, L, ·)
        tokens = tokens + self.proj(found.transpose(1, 2).flatten(2))
        return cast(Tensor, tokens + self.mlp(self.norm2(tokens)))  # (N, L, C)


class ViT(nn.Module):
    """Patches as tokens, pre-norm blocks, a last norm, the mean over tokens: (N, 3, S, S) to (N, num_features)."""

    # Differs: published transformers have a class token beside the patches, and most learn their positions.
    def __init__(self, width: int = 192, depth: int = 12, stem: str = "cifar") -> None:
        super().__init__()
        self.patch_size = _PATCH_SIZES[stem]
        self.num_features = width
        num_heads = max(width // _HEAD_WIDTH, 1)
        while width % num_heads:
            num_heads -= 1
        self.embed = nn.Linear(3 * self.patch_size**2, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.tokens(images).mean(dim=1)  # (N, F)

    def tokens(self, images: Tensor, visible: Tensor | None = None) -> Tensor:
        """What it makes, (N, L shown, F), of the patches numbered `visible` (N, L shown) alone; None: of all."""
        patches = cut(images, self.patch_size)  # (N, L, P)
        places = positions(*grid(images, self.patch_size), self.num_features, images.device)[None]  # (1, L, F)
        if visible is not None:
            patches, places = chosen(patches, visible), places[0][visible]
        tokens = self.embed(patches)
        tokens = tokens + places.to(tokens.dtype)
        for block in self.blocks:
            tokens = block(tokens)
        return cast(Tensor, self.norm(tokens))


def vit_tiny(width: int = 192, stem: str = "cifar") -> ViT:
    """ViT-Ti: 12 blocks of width 192, 3 heads."""
    return ViT(width, 12, stem)


def vit_small(width: int = 384, stem: str = "cifar") -> ViT:
    """ViT-S: 12 blocks of width 384, 6 heads."""
    return ViT(width, 12, stem)


def grid(images: Tensor, patch_size: int) -> tuple[int, int]:
    """The numbers of whole patches of images (N, 3, H, W), from top to bottom and from left to right."""
    return images.shape[2] // patch_size, images.shape[3] // patch_size


def cut(images: Tensor, patch_size: int) -> Tensor:
    """Images (N, 3, H, W) as their whole patches row by row, (N, L, P)."""
    rows, columns = grid(images, patch_size)
    whole = images[:, :, : rows * patch_size, : columns * patch_size]
    parts = torch.unflatten(torch.unflatten(whole, 3, (columns, patch_size)), 2, (rows, patch_size))
    return parts.permute(0, 2, 4, 3, 5, 1).flatten(1, 2).flatten(2)


def chosen(tokens: Tensor, numbers: Tensor) -> Tensor:
    """Each image's tokens (N, L, C) at its numbers (N, M): (N, M, C)."""
    return tokens.gather(1, numbers[:, :, None].expand(-1, -1, tokens.shape[2]))


def positions(rows: int, columns: int, width: int, device: torch.device) -> Tensor:
    """Sines and cosines of each place's row and column, (rows · columns, width); its last width mod 4 are zeros."""
    # Fixed, so that no parameter depends on the size of the images.
    num = width // 4
    frequencies = 10_000.0 ** (-torch.arange(num, device=device) / max(num, 1))  # (width / 4,)
    places = torch.cartesian_prod(torch.arange(rows, device=device), torch.arange(columns, device=device))  # (L, 2)
    angles = (places[:, :, None] * frequencies).flatten(1)  # (L, width / 2)
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width - 4 * num))


def initialise(network: nn.Module) -> None:
    """Xavier's uniform weights and no biases for every linear layer below a module, as published with MAE."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
