"""The registry rules, one file each. ``REGISTRY_RULES`` is the order in which they run and are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from ci.findings import Finding
from ci.integration.registry_rules import (
    dotted_scope,
    ep_without_multi_card_test,
    gated_without_precision_test,
    not_pinned,
    pip_exception,
    scope_of_dependency,
    submodule,
    undeclared_requirement,
    unguarded_test,
    unsatisfiable_together,
)
from ci.integration.registry_rules.facts import RegistryFacts
from ci.integration.rule import Rule


class RegistryRule(Protocol):
    """What a rule file holds."""

    RULE: Rule
    check: Callable[[RegistryFacts], Iterator[Finding]]


REGISTRY_RULES: tuple[RegistryRule, ...] = (
    submodule,
    not_pinned,
    undeclared_requirement,
    unsatisfiable_together,
    pip_exception,
    dotted_scope,
    scope_of_dependency,
    ep_without_multi_card_test,
    gated_without_precision_test,
    unguarded_test,
)  # type: ignore[assignment]


def registry_findings(facts: RegistryFacts) -> tuple[Finding, ...]:
    """Every finding of every registry rule, by place and line."""
    found: Iterable[Finding] = (item for rule in REGISTRY_RULES for item in rule.check(facts))
    return tuple(sorted(set(found), key=lambda item: (item.place, item.line, item.rule, item.why)))
