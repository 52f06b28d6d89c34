"""What the tools tell of their calls; their own words are from sccache 0.16.0 and ccache 4.7.5."""

from __future__ import annotations

import json

import pytest

from ci.compiler_cache.model import CacheStats
from ci.compiler_cache.stats import LINKING, of_ccache, of_sccache

TOLD = {
    "stats": {
        "compile_requests": 6,
        "requests_unsupported_compiler": 1,
        "requests_not_compile": 2,
        "requests_not_cacheable": 3,
        "requests_executed": 10,
        "cache_errors": {"counts": {"C/C++": 1}, "adv_counts": {}},
        "cache_hits": {"counts": {"PTX": 1, "CUDA": 2}, "adv_counts": {"ptx [cicc]": 1}},
        "cache_misses": {"counts": {"PTX": 4, "C/C++": 1}, "adv_counts": {}},
        "cache_timeouts": 1,
        "cache_read_errors": 1,
        "cache_write_errors": 2,
        "non_cacheable_compilations": 3,
        "not_cached": {"-E": 2, "multiple input files": 1},
    },
    "version": "0.16.0",
}


def test_sccache() -> None:
    assert of_sccache(json.dumps(TOLD)) == CacheStats(
        tool="sccache",
        requests=6,
        hits=3,
        misses=5,
        errors=5,
        languages={"C/C++": (0, 1), "CUDA": (2, 0), "PTX": (1, 4)},
        uncacheable={"-E": 2, LINKING: 2, "multiple input files": 1, "unknown compiler": 1},
    )


@pytest.mark.parametrize("text", ["[]", "{}", '{"stats": 1}'])
def test_what_is_no_statistics(text: str) -> None:
    with pytest.raises(ValueError, match="are not what"):
        of_sccache(text)


def test_what_is_no_json() -> None:
    with pytest.raises(json.JSONDecodeError):
        of_sccache("error: connection refused")


def test_another_sccache_that_counts_less() -> None:
    assert of_sccache('{"stats": {"cache_hits": null, "not_cached": [1]}}') == CacheStats("sccache")


def test_ccache() -> None:
    lines = (
        "# a.cc", "cache_miss", "direct_cache_miss", "preprocessed_cache_miss", "local_storage_write",
        "# b.cc", "preprocessed_cache_hit", "local_storage_hit", "remote_storage_error",
        "# c.cc", "direct_cache_hit",
        "# x", "called_for_link",
        "# y", "called_for_preprocessing", "",
    )  # fmt: skip
    assert of_ccache(lines) == CacheStats(
        tool="ccache",
        requests=5,
        hits=2,
        misses=1,
        errors=1,
        languages={"C/C++": (2, 1)},
        uncacheable={LINKING: 1, "called for preprocessing": 1},
    )


def test_the_sum() -> None:
    one = CacheStats("sccache", 2, 1, 1, 0, {"PTX": (1, 1)}, {"-E": 1})
    two = CacheStats("sccache", 3, 2, 0, 1, {"PTX": (1, 0), "CUDA": (1, 0)}, {"-E": 1, "-M": 1})
    assert CacheStats.total([one, CacheStats(), two]) == CacheStats(
        "sccache", 5, 3, 1, 1, {"CUDA": (1, 0), "PTX": (2, 1)}, {"-E": 2, "-M": 1}
    )
    assert CacheStats.total([]) == CacheStats()


def test_shown() -> None:
    assert CacheStats().shown == ""
    assert CacheStats("sccache", 3, 2, 1).shown == "2 hits, 1 misses"
    text = CacheStats("sccache", 3, 2, 1, 4, {}, {"-E": 2, "-M": 1}).shown
    assert text == "2 hits, 1 misses; not cacheable: 2 -E, 1 -M; 4 errors of its storage"
    json.dumps(CacheStats("sccache", 3, 2, 1, 4, {"PTX": (1, 1)}, {"-E": 2}).as_dict())
