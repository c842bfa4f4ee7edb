"""The same workload otherwise: another batch, sequence, precision or form of attention.

The constants say what launching an operator costs the host, relative to a layer of the framework (`Operator.host_share`).

A layer (matrix product, softmax, layer norm, embedding) brings the views, reshapes and module calls around it; an
element-wise operator is one dispatch.  Found on launch-bound runs of BERT, GPT-2, OPT, ResNet-101 and MobileViT
on two hosts: with these shares one host constant serves all of them (docs/workload-format.md).
"""

from typing import Final

LAYER: Final = 1.0
"""A matrix product, convolution, softmax, layer norm or embedding with all that surrounds it."""

LIGHT: Final = 0.6
"""One dispatched operator without surroundings: element-wise work, an activation, a batch norm, a pooling."""

INNER: Final = 0.1
"""A kernel launched from inside another operator's call: an operand copy, a conversion.  A launch without a way through the framework:
with operand copies the quick pace of GPT-2, OPT and BERT is longer by 1.5, -0.9 and 7.9 % (A100, 128 tokens, one sequence and several)."""

INTERNAL: Final = 0.0
"""A kernel that a library adds without the framework's knowledge."""
