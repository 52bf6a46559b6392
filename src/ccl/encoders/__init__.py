"""Encoders: backbones, heads with unit-norm embeddings, and momentum copies."""

from ccl.encoders.batch_norm import SplitBatchNorm as SplitBatchNorm
from ccl.encoders.batch_norm import split_batch_norm as split_batch_norm
from ccl.encoders.convnet import ConvNet as ConvNet
from ccl.encoders.encoder import Embedded as Embedded
from ccl.encoders.encoder import Encoder as Encoder
from ccl.encoders.encoder import evaluating as evaluating
from ccl.encoders.encoder import extract as extract
from ccl.encoders.encoder import extract_both as extract_both
from ccl.encoders.encoder import make_head as make_head
from ccl.encoders.factory import EncoderOptions as EncoderOptions
from ccl.encoders.factory import make_backbone as make_backbone
from ccl.encoders.factory import make_encoder as make_encoder
from ccl.encoders.momentum_encoder import MomentumEncoder as MomentumEncoder
from ccl.encoders.resnet import ResNet as ResNet
from ccl.encoders.vit import ViT as ViT
