"""Continual contrastive learning."""
