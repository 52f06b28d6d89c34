"""Where the sources of a library come from: the pinned submodule, a template, or an override."""

from __future__ import annotations
