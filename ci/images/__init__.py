"""The images that cells run in: made, verified, pinned."""

from __future__ import annotations
