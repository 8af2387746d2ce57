"""Which ops the backward pass may compute again instead of reading a saved result, beside those that torch lists.

torch's partitioner knows the ops that TorchInductor leaves whole. Ours are others: an op that it does not know would be
saved, with all that is computed from it, although mlcc makes it part of the kernel that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mlcc.torch_private import aot_partition
from mlcc.training import saved_images, saved_scores

# Free: they move no data.
_VIEWS = "detach diagonal split_with_sizes transpose unbind"

# Index maps, gathers and reductions that join the kernels of their readers.
_FUSED = (
    "all amin argmin constant_pad_nd embedding flip index_select max min prod repeat roll std_mean"
)


def partition(generated: Iterable[str], options: Mapping[str, Any]) -> Callable[..., Any]:
    """The partition function for AOTAutograd. `generated`: overloads with a row in the op table."""
    pointwise = {name.removeprefix("aten.").partition(".")[0] for name in generated}
    cut = aot_partition.min_cut(_VIEWS.split(), sorted({*_FUSED.split(), *pointwise}))
    split = saved_images.save_channels_last(cut, pointwise)
    # Random numbers of eager's generator follow from no seed.
    if options["contractions"] and not options["fallback_random"]:
        split = saved_scores.compute_again(split, pointwise)
    return split
