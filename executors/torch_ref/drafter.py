"""The block drafter of a model, as the scheduler's drafter."""

from __future__ import annotations

from collections.abc import Hashable

from k3mem.executors.torch_ref.executor import TorchExecutor
from k3mem.spec.draft import EMPTY, Draft
from k3mem.types import Int32


class BlockDrafter:
    """Hands out what an executor's block drafter said in each lane's newest step.

    The drafter runs in the executor's draft phase, behind the fold, for all rows of a step together; the scheduler asks
    when the step has committed. A lane that was just seated, or whose step failed, has nothing said yet and decodes.
    """

    def __init__(self, executor: TorchExecutor) -> None:
        """Raises ValueError where the executor's model has no drafter."""
        if executor.model.draft is None:
            raise ValueError("this model has no drafter: give Model.from_pretrained its folder, draft=...")
        self.executor = executor
        self.version = executor.model.draft.version

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Draft:
        """Nothing: what was said is known by lane."""
        return Draft(EMPTY)

    def draft_lane(self, lane: int, generation: int, tokens: Int32, limit: int) -> Draft:
        """See `k3mem.spec.draft.LaneDrafter`. O(limit)."""
        said = self.executor.proposed(lane, generation, len(tokens))
        return Draft(EMPTY) if said is None else Draft(said[0][:limit], said[1][:limit])
