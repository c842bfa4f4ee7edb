"""Changes of a workload: another batch, sequence, precision or form of attention.

The constants are the host's cost to launch an operator, relative to a layer of the framework (`Operator.host_share`).

A layer (matrix product, softmax, layer norm, embedding) includes the views, reshapes and module calls around it; an
element-wise operator is one dispatch.  Found on launch-bound runs of BERT, GPT-2, OPT, ResNet-101 and MobileViT
on two hosts: with these shares one host constant describes all of them (docs/workload-format.md).
"""

from typing import Final

LAYER: Final = 1.0
"""Cost of a matrix product, convolution, softmax, layer norm or embedding with its surroundings."""

LIGHT: Final = 0.6
"""Cost of one dispatched operator without surroundings: element-wise work, an activation, a batch norm, a pooling."""

INNER: Final = 0.1
"""Cost of a kernel launched inside another operator's call: an operand copy, a conversion.  Such a launch does not pass the framework:
operand copies change the launch-bound time of GPT-2, OPT and BERT by 1.5, -0.9 and 7.9 % (A100, 128 tokens, one sequence and several)."""

INTERNAL: Final = 0.0
"""Cost of a kernel that a library adds without the framework."""
