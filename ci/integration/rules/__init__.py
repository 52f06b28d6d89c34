"""The static rules, one file each. ``RULES`` is the order in which they run and are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from ci.findings import Finding
from ci.integration.analysis import Analysis
from ci.integration.rule import Rule
from ci.integration.rules import (
    circular_import,
    conditional_import,
    dynamic_import,
    enable_compat,
    exception_triggered_by_init,
    exception_without_context,
    lazy_loader,
    lazy_submodule_import,
    lazy_torch_import,
    leaking_state,
    module_getattr,
    name_collision,
    scope_incomplete,
    submodule_not_imported,
    undocumented_exception,
    unreadable_source,
    untested_exception,
)


class StaticRule(Protocol):
    """What a rule file holds."""

    RULE: Rule
    check: Callable[[Analysis], Iterator[Finding]]


STATIC_RULES: tuple[StaticRule, ...] = (
    unreadable_source,
    submodule_not_imported,
    lazy_torch_import,
    lazy_submodule_import,
    dynamic_import,
    module_getattr,
    lazy_loader,
    conditional_import,
    undocumented_exception,
    exception_without_context,
    exception_triggered_by_init,
    untested_exception,
    leaking_state,
    enable_compat,
    scope_incomplete,
    circular_import,
    name_collision,
)  # type: ignore[assignment]


def static_findings(analysis: Analysis) -> tuple[Finding, ...]:
    """Every finding of every static rule, by place and line."""
    found: Iterable[Finding] = (item for rule in STATIC_RULES for item in rule.check(analysis))
    return tuple(sorted(set(found), key=lambda item: (item.place, item.line, item.rule, item.why)))
