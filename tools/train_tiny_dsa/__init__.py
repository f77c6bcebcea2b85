"""Train the small model that ships with the package, or a larger sibling of it.

A language model of the DeepSeek-V3.2 architecture learns Python documentation and code with dense attention,
while its lightning indexers learn to point at what that attention looks at. Read in this order: `settings`,
`corpus`, `vocabulary`, `architecture`, `attention`, `schedule`, `training`, `command`.

Run from the root of the repository (needs torch 2.9 or newer and transformers)::

    python -m tools.train_tiny_dsa --out tiny --corpus /usr/lib/python3 --corpus cpython/Doc
"""
