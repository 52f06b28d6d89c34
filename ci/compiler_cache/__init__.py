"""Compiler caches (sccache, ccache) for the compilers of library builds."""

from __future__ import annotations
