"""Learn CIFAR-100 as a stream of five steps from the parts of ccl, without the command line.

python examples/cifar100_stream.py DATA [EPOCHS]     (DATA holds cifar-100-python; a minute or two at 10 epochs)
"""

import sys
from dataclasses import replace

from ccl.data import class_incremental, load_dataset
from ccl.encoders import EncoderOptions, extract, make_encoder
from ccl.evaluation import fit
from ccl.objectives import MoCoV2
from ccl.retention import ExtraSampleQueue, TeacherDistillation
from ccl.training import Learner, Plan, Selection, learn_stream
from ccl.views import RECIPES, Viewer

data = load_dataset("cifar100", sys.argv[1], resize=16, classes=20)
steps = class_incremental(data.train_labels, num_steps=5, seed=0)
encoder = make_encoder(EncoderOptions(backbone="convnet", batch_norm_groups=1))
learn_the_present = MoCoV2(encoder, MoCoV2.Options(queue_size=512), temperature=0.1)
keep_the_past = {
    "distillation": TeacherDistillation(encoder, temperature=0.1),
    "extra_sample_queue": ExtraSampleQueue(dim=128, temperature=0.1),
}
weights = {"contrast": 0.9, "distillation": 0.1, "extra_sample_queue": 0.1}
learner = Learner(encoder, learn_the_present, keep_the_past, weights)
viewer = Viewer(replace(RECIPES["moco_cifar"], size=16, min_scale=0.2), seed=0)
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 10


def report(step: int) -> None:
    """A linear probe of all classes on the frozen encoder."""
    probe = fit(extract(encoder, data.train, viewer), data.train_labels)
    accuracy = probe.accuracy(extract(encoder, data.test, viewer), data.test_labels)
    print(f"after step {step + 1}: linear probe {accuracy:.1f} %, {len(learner.memory)} images kept", flush=True)


learn_stream(
    learner,
    [data.train.subset(step.indices) for step in steps],
    viewer,
    Plan(epochs, batch_size=128),
    selection=Selection("view_variance"),
    num_clusters=[len(step.classes) for step in steps],
    after_step=report,
)
