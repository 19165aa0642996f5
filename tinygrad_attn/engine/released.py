"""What a backward pass leaves in the records that it has used.

It lets go of their inputs. A second pass through the same place would find only a part of the graph
and give a wrong number in silence, so it is refused. So is a gradient by a tensor from which a way
may have led through such a place: it is not known any more whether there was one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import ref

from . import misuse
from .graph import Variable


class Released:
    """Stands for the op in the records that a backward pass has used, and knows where that pass
    ended.
    """

    __name__ = "released"
    reference, broadcasts, saves, vjps = None, False, False, ()  # what is asked of an op
    ends: dict[int, Any] | None = None  # None: not known

    @property
    def stands_for(self) -> Released:
        """It stands for itself."""
        return self

    def let_go(self, record: Any) -> None:
        """Stand in this record, which then holds no tensor."""
        record.op, record.inputs, record.settings, record.saved = self, (), {}, None

    def end_at(self, tensors: Iterable[Any]) -> None:
        """Note where the pass ended; not if one of these is released itself, for nobody knows what
        was behind it.
        """
        if not any(x._node is not None and isinstance(x._node.op, Released) for x in tensors):
            self.ends = {id(x): ref(x) for x in tensors}

    def may_hide(self, wanted: Iterable[Variable], time: int) -> bool:
        """May a wanted tensor have been an input, near or far, of a record of that time, which is
        gone? Where the ends of the pass are not known, any older tensor may.
        """
        older = [x for x in wanted if x._node is None or x._node.number < time]
        if self.ends is None:
            return bool(older)
        ended_at = [x for x in older if id(x) in self.ends and self.ends[id(x)]() is x]
        return bool(ended_at) or any(x._node is not None and x._node.op is self for x in older)

    def pull(self, *_: Any) -> Any:
        """Nothing is left to ask."""
        raise misuse.graph_released()
