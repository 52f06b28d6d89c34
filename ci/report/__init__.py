"""What a run did, and how it is shown: one model, several renderings."""

from __future__ import annotations
