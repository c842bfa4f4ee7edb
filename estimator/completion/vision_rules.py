"""Completion rules for convolution networks and image transformers, as eager PyTorch runs them channels-first."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from estimator.completion.patterns import NOTHING, Change, Patterns, added
from estimator.transforms import INNER, INTERNAL
from estimator.vocabulary.workload import Operator, conv_output_size, is_of_single_pixels

CONVERTED: Final = frozenset({"bf16", "fp16", "tf32"})
"""Precisions whose tensor-core convolutions work channels-last inside cuDNN."""


class Image(NamedTuple):
    """A tensor of images: channels, height, width, and elements over the batch."""

    channels: float
    height: float
    width: float
    elements: float


def conv_input(operator: Operator) -> Image:
    """The image that a convolution reads."""
    batch, channels, height, width = operator.shape[:4]
    return Image(channels, height, width, batch * channels * height * width)


def conv_output(operator: Operator) -> Image:
    """The image that a convolution writes."""
    height, width = conv_output_size(operator)
    return Image(operator["filters"], height, width, operator["batch"] * operator["filters"] * height * width)


def is_patch_embedding(operator: Operator) -> bool:
    """Whether a convolution cuts an image into patches that do not overlap."""
    return operator["kernel_h"] == operator["stride"] > 1.0


def depthwise(patterns: Patterns) -> Iterator[Change]:
    """Depthwise convolutions are listed as dense ones, with up to 512 times their operations."""
    for site in filter(patterns.is_depthwise, patterns.conv_sites):
        dense = patterns.operators[site.conv]
        *dimensions, _ = dense.shape
        light = Operator(
            family="conv",
            operator="depthwise",
            precision=dense.precision,
            shape=(*dimensions, dense["channels"]),
            precision_out=dense.precision_out,
        )
        yield Change(light, site.times, site.conv)


def batch_norm(patterns: Patterns) -> Iterator[Change]:
    """A batch norm follows every convolution, except a patch embedding and a convolution directly before a layer norm."""
    for site in patterns.conv_sites:
        operator = patterns.operators[site.conv]
        if is_patch_embedding(operator) or site.after == site.norm != NOTHING:
            continue
        out = conv_output(operator)
        rows = out.elements / out.channels
        yield added(site.times, "norm.batchnorm", operator.precision, rows, out.channels)


def layout_conversion(patterns: Patterns) -> Iterator[Change]:
    """cuDNN converts the input of a dense convolution from channels-first to channels-last, and in 16 bits its output back."""
    return _conversions(patterns, of_pixels=False)


def pixel_layout(patterns: Patterns) -> Iterator[Change]:
    """So it does around convolutions of single pixels, but not on all boards."""
    return _conversions(patterns, of_pixels=True)


def _conversions(patterns: Patterns, *, of_pixels: bool) -> Iterator[Change]:
    for site in patterns.conv_sites:
        operator = patterns.operators[site.conv]
        dense = operator.operator != "depthwise" and not patterns.is_depthwise(site)
        if operator.precision in CONVERTED and dense and is_of_single_pixels(operator) == of_pixels:
            for image in (conv_input(operator), conv_output(operator))[: 1 if operator.precision == "tf32" else 2]:
                yield added(site.times, "copy.layout", operator.precision, image.elements, image.elements, INTERNAL)


def pooling(patterns: Patterns) -> Iterator[Change]:
    """A pooling lies between two convolutions if the second reads a smaller image with as many channels.

    The average over the image before a classifier is found the same way.
    """
    for site in patterns.conv_sites:
        operator = patterns.operators[site.conv]
        out = conv_output(operator)
        if site.following != NOTHING:
            taken = conv_input(patterns.operators[site.following])
            if taken.channels == out.channels and taken.height < out.height:
                yield added(site.times, "elementwise.pool", operator.precision, taken.elements, out.elements)
    if patterns.conv_order:
        yield from _global_pooling(patterns)


def _global_pooling(patterns: Patterns) -> Iterator[Change]:
    conv, last = patterns.operators[patterns.conv_order[-1]], patterns.operators[patterns.order[-1]]
    out = conv_output(conv)
    if last.operator == "linear" and (last["m"], last["k"]) == (conv["batch"], out.channels):
        rows = conv["batch"] * out.channels
        yield added(1.0, "reduction.mean", conv.precision, rows, out.height * out.width)


def residual_add(patterns: Patterns) -> Iterator[Change]:
    """Residual networks add in place, which is not listed.

    Such a network has a shortcut: two convolutions in a row with one output shape, where the second does not read the
    first.  Its blocks are 1×1, k×k, 1×1.  If additions of images are listed, this rule adds nothing.
    """
    if any(operator.operator in ("add", "other") for operator in patterns.operators):
        return
    order, shortcuts = patterns.conv_order, _shortcuts(patterns)
    for start in range(len(order) - 2) if shortcuts else ():
        first, middle, last = (patterns.operators[number] for number in order[start : start + 3])
        is_block = first["kernel_h"] == last["kernel_h"] == 1.0 < middle["kernel_h"]
        has_shortcut, out = order[start + 2 : start + 4] in shortcuts, conv_output(last)
        if is_block and (has_shortcut or conv_input(first) == out):
            yield added(1.0, "elementwise.add", first.precision, out.elements, 2.0 * out.elements)


def _shortcuts(patterns: Patterns) -> set[tuple[int, ...]]:
    """Pairs of convolutions in a row, the second a shortcut beside the first."""
    pairs: set[tuple[int, ...]] = set()
    for site in patterns.conv_sites:
        if site.after != NOTHING and site.after == site.following:
            first, second = patterns.operators[site.conv], patterns.operators[site.after]
            if conv_output(first) == conv_output(second) and conv_input(second) != conv_output(first):
                pairs.add((site.conv, site.after))
    return pairs


def concatenation(patterns: Patterns) -> Iterator[Change]:
    """A convolution that reads twice the channels of the one before it reads a concatenation with a kept tensor."""
    for site in patterns.conv_sites:
        if site.previous == NOTHING:
            continue
        taken, written = conv_input(patterns.operators[site.conv]), conv_output(patterns.operators[site.previous])
        if taken.channels == 2.0 * written.channels and taken.height == written.height and taken.width == written.width:
            precision, size = patterns.operators[site.conv].precision, taken.elements
            yield added(site.times, "copy.cat", precision, size, size)


def patch_tokens(patterns: Patterns) -> Iterator[Change]:
    """An image transformer puts a class token before its patches, which copies them.

    A convolution that leads to a layer norm over as many elements as it wrote (MobileViT) is unfolded into patches by
    two copies, and folded back by two more before the next convolution.
    """
    for site in patterns.conv_sites:
        if site.norm == NOTHING:
            continue
        operator, norm = patterns.operators[site.conv], patterns.operators[site.norm]
        tokens, written = norm.shape[0] * norm.shape[1], conv_output(operator).elements
        if tokens > written and is_patch_embedding(operator):
            yield added(site.times, "copy.cat", operator.precision, tokens, written)
        elif tokens == written and site.following != NOTHING:
            yield added(4.0 * site.times, "copy.transpose", operator.precision, tokens, tokens, INNER)
