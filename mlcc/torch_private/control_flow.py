"""Control flow that torch has not made public yet."""

from __future__ import annotations

from torch._higher_order_ops import while_loop as while_loop

__all__ = ["while_loop"]
