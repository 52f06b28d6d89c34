"""Locked Python environments: what is in one is decided by a lock with hashes, then installed by uv."""

from __future__ import annotations
