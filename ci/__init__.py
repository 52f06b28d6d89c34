"""The paddlefleet_ops build farm: matrix, toolchains, library builds, wheels, import suites.

``ci/README.md`` is the map. Nothing here has an effect on import.
"""

from __future__ import annotations

__version__ = "0.1.0"
