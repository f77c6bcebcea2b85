"""HiSparse: the KV cache of sparse-attention models in host memory or on disk, with the same tokens.

Layers, top down (imports point down only): ``cli``, ``integrations``, ``hot`` and ``host``,
``kernels`` and ``telemetry``, ``config``, ``layout`` and ``data``, ``errors``.
"""

__version__ = "0.1.0"
