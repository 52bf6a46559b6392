"""The paper's linear probe: SGD on a frozen encoder that reads newly augmented images in every epoch."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ccl import seeding
from ccl.data.image_sources import ImageSource
from ccl.encoders import Encoder, evaluating
from ccl.evaluation.probes import LinearClassifier, enumerate_labels
from ccl.views import Viewer

PAPER_EPOCHS = 100
PAPER_PROTOCOL = (
    "linear, paper: SGD with learning rate 30 over 100 epochs of new crops and flips, ×0.1 at 60 and 80, batch 256"
)


def fit_paper(
    encoder: Encoder,
    source: ImageSource,
    labels: Tensor,
    viewer: Viewer,
    epochs: int = PAPER_EPOCHS,
    learning_rate: float = 30.0,
    milestones: Sequence[int] = (60, 80),
    batch_size: int = 256,
    seed: int = 0,
) -> LinearClassifier:
    """MoCo's linear classification: momentum 0.9, no weight decay, rate ×0.1 at the milestones; the viewer crops."""
    if len(labels) != len(source) or not len(source):
        raise ValueError(f"each image needs a label: {len(source)} images, {len(labels)} labels")
    classes, targets = enumerate_labels(labels)  # (C,), (N,)
    device, num_features = viewer.device, encoder.num_features
    draws = seeding.generator(seed, "linear probe weights")
    weights = (0.01 * torch.randn(len(classes), num_features, generator=draws)).to(device).requires_grad_()  # (C, F)
    bias = torch.zeros(len(classes), device=device, requires_grad=True)  # (C,)
    optimizer = torch.optim.SGD([weights, bias], lr=learning_rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(milestones), gamma=0.1)
    for epoch in range(epochs):
        order = seeding.permutation(source.ids, seed, "linear probe order", epoch)  # (N,)
        for batch in viewer.batches(source, torch.split(order, batch_size), moment=(epoch,), num_views=1):
            with evaluating(encoder):
                inputs = encoder.features(batch.views[0]).float()  # (B, F)
            wanted = targets[batch.positions.cpu()].to(device)  # (B,)
            loss = F.cross_entropy(inputs @ weights.T + bias, wanted)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
    unscaled = torch.zeros(num_features), torch.ones(num_features)
    return LinearClassifier(weights.detach().cpu(), bias.detach().cpu(), *unscaled, classes)
