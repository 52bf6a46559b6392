"""Encoder folders: an encoder that learns from drops of unlabelled images, in versions."""
