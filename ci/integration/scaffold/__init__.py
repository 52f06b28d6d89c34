"""Scaffolding: a library enters the farm (:func:`integrate`) and leaves it again (:func:`remove`)."""

from __future__ import annotations

from ci.integration.scaffold.arguments import integrate_options, remove_options, request_of
from ci.integration.scaffold.integrate import Integrated, Plan, integrate
from ci.integration.scaffold.remove import Removal, remove
from ci.integration.scaffold.request import Exercise, IntegrateRequest

__all__ = [
    "Exercise",
    "IntegrateRequest",
    "Integrated",
    "Plan",
    "Removal",
    "integrate",
    "integrate_options",
    "remove",
    "remove_options",
    "request_of",
]
