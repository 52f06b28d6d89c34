"""Test suites and what they may conclude."""

from __future__ import annotations
