"""The offline bundle: everything that cells need, in one folder that another machine can verify and use."""

from __future__ import annotations
