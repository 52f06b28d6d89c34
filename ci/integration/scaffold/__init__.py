"""Scaffolding: a library enters the farm (:mod:`.integrate`) and leaves it again (:mod:`.remove`).

Nothing is imported here, because the command line reads the options (:mod:`.arguments`) on every run.
"""

from __future__ import annotations
