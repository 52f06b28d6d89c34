"""Steps, their keys, and the store of their results."""

from __future__ import annotations
