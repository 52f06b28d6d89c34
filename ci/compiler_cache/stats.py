"""What the tools tell of their calls, as :class:`~ci.compiler_cache.model.CacheStats`. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

from ci.compiler_cache.model import CacheStats

LINKING = "link or other call that compiles nothing"


def of_sccache(text: str) -> CacheStats:
    """From ``sccache --show-stats --stats-format json``. Raises :class:`ValueError` when it is something
    else.
    """
    values = json.loads(text)
    stats = values.get("stats") if isinstance(values, dict) else None
    if not isinstance(stats, dict):
        raise ValueError("sccache's statistics are not what its versions up to 0.16 print")
    hits, misses = _counts(stats.get("cache_hits")), _counts(stats.get("cache_misses"))
    errors = _counts(stats.get("cache_errors"))
    uncacheable = Counter(_numbers(stats.get("not_cached")))
    uncacheable[LINKING] += _number(stats.get("requests_not_compile"))
    uncacheable["unknown compiler"] += _number(stats.get("requests_unsupported_compiler"))
    return CacheStats(
        tool="sccache",
        requests=_number(stats.get("compile_requests")),
        hits=sum(hits.values()),
        misses=sum(misses.values()),
        errors=sum(errors.values())
        + sum(
            _number(stats.get(name))
            for name in ("cache_timeouts", "cache_read_errors", "cache_write_errors")
        ),
        languages={
            name: (hits.get(name, 0), misses.get(name, 0)) for name in sorted({*hits, *misses})
        },
        uncacheable={reason: number for reason, number in sorted(uncacheable.items()) if number},
    )


def _counts(value: object) -> dict[str, int]:
    return _numbers(value.get("counts")) if isinstance(value, Mapping) else {}


def _numbers(value: object) -> dict[str, int]:
    if not isinstance(value, Mapping):
        return {}
    return {str(name): _number(number) for name, number in value.items()}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


# The identifiers of ccache's statistics: those that say what a call was (ccache manual, "Cache
# statistics").
_CCACHE_HITS = frozenset(("direct_cache_hit", "preprocessed_cache_hit"))
_CCACHE_LINKS = frozenset(("called_for_link", "no_input_file"))
_CCACHE_ERRORS = frozenset(("remote_storage_error", "remote_storage_timeout", "internal_error"))
_CCACHE_UNCACHEABLE = frozenset(
    ("autoconf_test", "bad_compiler_arguments", "bad_input_file", "bad_output_file",
     "called_for_preprocessing", "compile_failed", "compiler_check_failed",
     "compiler_produced_empty_output", "compiler_produced_no_output", "compiler_produced_stdout",
     "could_not_find_compiler", "could_not_use_modules", "could_not_use_precompiled_header",
     "disabled", "error_hashing_extra_file", "missing_cache_file", "multiple_source_files",
     "output_to_stdout", "preprocessor_error", "recache", "unsupported_code_directive",
     "unsupported_compiler_option", "unsupported_environment_variable", "unsupported_source_language")
)  # fmt: skip


def of_ccache(lines: Iterable[str]) -> CacheStats:
    """From ccache's log of statistics (``CCACHE_STATSLOG``): a line ``# FILE`` for each call, then
    identifiers.
    """
    counts: Counter[str] = Counter()
    calls = 0
    for line in lines:
        word = line.strip()
        if word.startswith("#"):
            calls += 1
        elif word:
            counts[word] += 1
    hits, misses = sum(counts[name] for name in _CCACHE_HITS), counts["cache_miss"]
    uncacheable = {
        name.replace("_", " "): counts[name] for name in sorted(_CCACHE_UNCACHEABLE) if counts[name]
    }
    links = sum(counts[name] for name in _CCACHE_LINKS)
    return CacheStats(
        tool="ccache",
        requests=calls,
        hits=hits,
        misses=misses,
        errors=sum(counts[name] for name in _CCACHE_ERRORS),
        languages={"C/C++": (hits, misses)} if hits or misses else {},
        uncacheable=({LINKING: links} if links else {}) | uncacheable,
    )
