"""Hosts of the cache: the only packages that import torch, transformers or an engine."""
