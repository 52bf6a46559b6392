"""MAE: most patches of an image are hidden, and a decoder predicts them from what the encoder makes of the others."""

from typing import Annotated, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ccl.encoders import Embedded, Encoder
from ccl.encoders.vit import Block, ViT, chosen, cut, grid, initialise, positions
from ccl.losses import masked_patches
from ccl.part import Contrast, Objective
from ccl.section import Count, Section
from ccl.seeding import uniform
from ccl.views import ViewBatch


class MAE(Objective):
    """Neither negatives nor a second view, and no loss for the encoder's head (He et al., CVPR 2022)."""

    num_views = 1
    num_student_views = 0  # whole views are for others

    class Options(Section):
        masked: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.75  # the share of an image's patches that is not shown
        decoder_width: Count = 128  # channels of its tokens; MAE: 512
        decoder_depth: Count = 2  # blocks; MAE: 8
        decoder_heads: Count = 4  # of its attention; MAE: 16

        @model_validator(mode="after")
        def _equal_heads(self) -> Self:
            if self.decoder_width % self.decoder_heads:
                nearest = max(round(self.decoder_width / self.decoder_heads), 1) * self.decoder_heads
                raise ValueError(
                    f"mae.decoder_width {self.decoder_width} can't be split in {self.decoder_heads} mae.decoder_heads; "
                    f"nearest valid value: {nearest}"
                )
            return self

    def __init__(self, encoder: Encoder, options: Options = Options(), *, seed: int = 0) -> None:
        super().__init__()
        self.patch_size = cast(ViT, encoder.backbone).patch_size
        self.masked = options.masked
        self.seed = seed
        sizes = options.decoder_width, options.decoder_depth, options.decoder_heads
        self.decoder = Decoder(encoder.num_features, *sizes, num_values=3 * self.patch_size**2)

    def contrast(
        self, encoder: Encoder, student: tuple[Embedded, ...], batch: ViewBatch, moment: tuple[int, int]
    ) -> Contrast:
        images = batch.views[0]
        patches = cut(images, self.patch_size)  # (N, L, P)
        order, num_visible = self.drawn(batch, patches.shape[1], moment)
        order = order.to(images.device)
        visible = order[:, :num_visible]  # (N, L shown)
        tokens = encoder.tokens(images, visible)  # (N, L shown, F)
        predicted = self.decoder(tokens, order, grid(images, self.patch_size))  # (N, L, P)
        is_masked = torch.ones_like(order, dtype=torch.bool).scatter(1, visible, False)  # (N, L)
        loss = masked_patches(predicted, patches, is_masked)
        unit = student[0].unit if student else encoder.embed_none(images.device).unit  # (N, D)
        return Contrast(loss, unit, (), unit.detach())

    def drawn(self, batch: ViewBatch, num_patches: int, moment: tuple[int, int]) -> tuple[Tensor, int]:
        """A random order of each image's patches, (N, L), and how many of them, the first ones, are shown."""
        draws = uniform(batch.ids, num_patches, self.seed, "mask", *moment, turns=batch.turns)  # (N, L)
        num_visible = min(max(round(num_patches * (1.0 - self.masked)), 1), num_patches - 1)
        return draws.argsort(dim=1, stable=True), num_visible


class Decoder(nn.Module):
    """A small transformer over all places, with one learned token where nothing was shown."""

    def __init__(self, num_features: int, width: int, depth: int, num_heads: int, num_values: int) -> None:
        super().__init__()
        self.embed = nn.Linear(num_features, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.predict = nn.Linear(width, num_values)
        initialise(self)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, order: Tensor, sides: tuple[int, int]) -> Tensor:
        """Predicted patches (N, L, P), from tokens (N, L shown, F) of the first ones of an order (N, L)."""
        shown = self.embed(tokens)  # (N, L shown, C)
        hidden = self.mask_token.expand(len(order), order.shape[1] - shown.shape[1], -1)  # (N, L hidden, C)
        rows = chosen(torch.cat([shown, hidden], dim=1), order.argsort(dim=1))  # (N, L, C): by place
        rows = rows + positions(*sides, rows.shape[2], rows.device).to(rows.dtype)
        for block in self.blocks:
            rows = block(rows)
        return cast(Tensor, self.predict(self.norm(rows)))
