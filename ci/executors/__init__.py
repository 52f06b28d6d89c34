"""Where the commands of a cell run: one seam, :class:`~ci.executors.base.Executor`."""

from __future__ import annotations
