"""The paper's own figures, to stand beside ours: linear probe, top-1 in percent, on the authors' GPUs."""

from ccl.report.tables import Table

_SCALE = "The paper's own scale: {}. Our scale is what the protocol of our tables says."
_CIFAR = "CIFAR-100, ResNet-18, 200 epochs a step, mean ± std of 6 trials"
_IMAGENET = "ImageNet-Sub, ResNet-50, 200 epochs a step, one trial"


def _table(title: str, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...], scale: str) -> Table:
    return Table(f"The paper: {title}", columns, rows, _SCALE.format(scale))


def _in_words(title: str, finding: str, where: str = "CIFAR-100", scale: str = _CIFAR) -> Table:
    return _table(f"{title}, in words", ("Finding", "where"), ((finding, where),), scale)


TABLE_1 = _table(
    "Table 1, all classes (%)",
    ("Strategy", "CIFAR-100, T = 5", "CIFAR-100, T = 10", "ImageNet-Sub, T = 5", "T = 10", "ImageNet-Full, T = 10"),
    (
        ("Finetuning", "51.08 ± 0.34", "48.40 ± 0.42", "56.56", "52.62", "61.50"),
        ("Simple Rehearsal", "52.61 ± 0.41", "49.44 ± 0.36", "57.98", "54.28", "62.05"),
        ("CCL", "53.80 ± 0.37", "50.10 ± 0.35", "58.92", "55.48", "62.79"),
        ("Upper Bound", "57.63 ± 0.12", "57.63 ± 0.12", "60.54", "60.54", "67.50"),
        ("gap closed by CCL", "42 %", "18 %", "59 %", "36 %", "22 %"),
    ),
    f"{_CIFAR}; ImageNet with ResNet-50, one trial",
)
ABLATION = _table(
    "components, ImageNet-Sub, T = 10 (%)",
    ("Strategy", "All classes (%)"),
    (
        ("Finetuning", "52.62"),
        ("Simple Rehearsal (random memory)", "54.28"),
        ("+ variance sampling", "55.18"),
        ("+ distillation", "55.21"),
        ("CCL (+ extra sample queue)", "55.48"),
    ),
    _IMAGENET,
)
QUEUE_SIZE = _table(
    "size of the extra sample queue, CIFAR-100, T = 5",
    ("Size", "All classes (%)"),
    (
        ("32", "53.01 ± 0.33"),
        ("64", "53.61 ± 0.28"),
        ("128", "53.80 ± 0.37"),
        ("256", "53.59 ± 0.35"),
        ("512", "53.23 ± 0.34"),
    ),
    _CIFAR,
)
TRANSFER = _table(
    "Forgetting ↓ / Forward Transfer ↑, ImageNet-Sub",
    ("Strategy", "T = 5", "T = 10"),
    (
        ("Finetuning", "0.7 / 47.1", "3.5 / 45.8"),
        ("Simple Rehearsal", "0.3 / 48.4", "2.0 / 47.0"),
        ("CCL", "0.3 / 48.3", "1.6 / 47.3"),
    ),
    _IMAGENET,
)
CLUSTERS = _in_words(
    "accuracy against the number of clusters K",
    "flat for K from 5 to 15 where the truth is 10; worse far away",
    "ImageNet-Sub, T = 10",
    _IMAGENET,
)
OBJECTIVES = _in_words(
    "other objectives",
    "CCL improves SimCLR and InsDisc as it improves MoCoV2 (a figure without printed numbers)",
)
FIGURE_1A = _in_words(
    "Figure 1a",
    "several contrastive objectives lose accuracy when the data is streamed (no printed numbers)",
)
FIGURE_1B = _in_words(
    "Figure 1b",
    "MoCoV2 loses more the more steps the stream has, from 2 to 10 (no printed numbers)",
)
