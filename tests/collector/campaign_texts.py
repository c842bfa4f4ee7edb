"""Pieces of campaign files that several tests write."""

SHORT_HEAD = """
description = "a few loads"
warmup_s = 1.0
idle_settle_s = 1.0
idle_window_s = 1.0
kernels_per_block = 8
anchor_every = 0

[measurement]
updates = 6
window_s = 0.6
settle_s = 0.3
idle_s = 1.0
"""
"""Everything but the loads: short rests, no anchors."""

ANCHORED_HEAD = """
description = "a dozen kernels"
warmup_s = 2.0
idle_settle_s = 1.0
idle_window_s = 1.0
kernels_per_block = 4
anchor_every = 6

[measurement]
updates = 8
window_s = 0.8
settle_s = 0.3
idle_s = 1.5

[[anchors]]
family = "elementwise"
operator = "add"
precision = "fp16"
elements = 33554432
reads = 67108864
"""
"""Everything but the kernels: an anchor after every six of them."""

ONE_SOFTMAX = """
[[kernels]]
family = "softmax"
operator = "softmax"
precision = "fp32"
count = 1
[kernels.shape]
rows = 4096
dim = 1024
"""


def softmax_of_many_sizes(count):
    """`count` softmax kernels of random sizes."""
    return f"""
[[kernels]]
family = "softmax"
operator = "softmax"
precision = "fp32"
count = {count}
[kernels.shape]
rows = {{ low = 64, high = 65536 }}
dim = {{ low = 64, high = 4096 }}
"""
