"""Encoders: backbones, heads with unit-norm embeddings, and momentum copies."""

from ccl.catalogue import BACKBONES
from ccl.encoders.batch_norm import SplitBatchNorm, split_batch_norm
from ccl.encoders.convnet import ConvNet
from ccl.encoders.encoder import Embedded, Encoder, evaluating, extract, extract_both, make_head
from ccl.encoders.factory import EncoderOptions, make_backbone, make_encoder
from ccl.encoders.momentum_encoder import MomentumEncoder
from ccl.encoders.resnet import ResNet
from ccl.encoders.vit import ViT

__all__ = [
    "BACKBONES",
    "ConvNet",
    "Embedded",
    "Encoder",
    "EncoderOptions",
    "MomentumEncoder",
    "ResNet",
    "SplitBatchNorm",
    "ViT",
    "evaluating",
    "extract",
    "extract_both",
    "make_backbone",
    "make_encoder",
    "make_head",
    "split_batch_norm",
]
