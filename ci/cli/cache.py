"""The verb that looks after stored results: what is there, whether it is whole, what may go, and why."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from ci.cli.options import cache_option, json_option, memory_size, not_empty, print_json
from ci.errors import FindingError
from ci.report.console import megabytes, print_table

if TYPE_CHECKING:
    from ci.graph.inspection import Statistics, Why
    from ci.graph.remote import Remote
    from ci.graph.store import Store

_SHOWN_VALUE = 300
_UNITS = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def cache_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``cache``."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    stats = verbs.add_parser(
        "stats", help="what is stored: entries, sizes, users, the shared store"
    )
    stats.add_argument(
        "--remote-cache",
        default=os.environ.get("PADDLEFLEET_FARM_REMOTE", ""),
        metavar="URL",
        help="the shared store to ask whether it answers (PADDLEFLEET_FARM_REMOTE)",
    )
    stats.set_defaults(run=_run_stats)
    verify = verbs.add_parser("verify", help="read everything, and compare it with its hashes")
    verify.add_argument("--remove", action="store_true", help="drop what is bad; it is built again")
    verify.set_defaults(run=_run_verify)
    collect = verbs.add_parser(
        "gc", help="evict what was used least recently, and what the dead left"
    )
    collect.add_argument(
        "--limit",
        type=memory_size,
        default=os.environ.get("PADDLEFLEET_FARM_CACHE_LIMIT") or None,
        metavar="SIZE",
        help="how much may stay, such as 20g (PADDLEFLEET_FARM_CACHE_LIMIT); without: all that is whole",
    )
    collect.add_argument("--dry-run", action="store_true", help="say what would go, and keep it")
    collect.set_defaults(run=_run_gc)
    reason = verbs.add_parser(
        "why", help="the inputs of a result, and what sets it apart from another"
    )
    reason.add_argument(
        "key", type=not_empty, metavar="KEY", help="a key, its first digits, or a library"
    )
    reason.set_defaults(run=_run_why)
    for action in (stats, verify, collect, reason):
        json_option(action)
        cache_option(action)


def _store(arguments: argparse.Namespace, console: Console) -> Store:
    from ci.graph.store import Store

    def warn(text: str) -> None:
        if not arguments.json:
            console.print(f"warning: {escape(text)}", soft_wrap=True)

    root: Path = arguments.cache_dir.absolute() / "store"
    return Store(root, warn=warn)


# -- stats -----------------------------------------------------------------------------------------


def _run_stats(arguments: argparse.Namespace, console: Console) -> int:
    from ci.graph.inspection import statistics
    from ci.graph.remote import open_remote

    store = _store(arguments, console)
    found = statistics(store)
    remote = open_remote(arguments.remote_cache, writable=False) if arguments.remote_cache else None
    answer = _answer(remote)
    if arguments.json:
        shown = {"url": remote.shown, "answer": answer} if remote else None
        values = asdict(found) | {"saved_bytes": found.saved_bytes, "remote": shown}
        print_json({"folder": str(store.root), **values})
        return 0
    console.print(f"store: {escape(str(store.root))}", soft_wrap=True)
    _print_statistics(console, found)
    shown_remote = f"{escape(remote.shown)}, {escape(answer)}" if remote else "none"
    console.print(f"shared store: {shown_remote}", soft_wrap=True)
    return 0


def _answer(remote: Remote | None) -> str:
    if remote is None:
        return ""
    remote.entry("0" * 64)
    return remote.why_off or "answers"


def _print_statistics(console: Console, found: Statistics) -> None:
    console.print(
        f"{found.entries} results, {found.blobs} contents, {_size(found.blob_bytes)}; "
        f"equal contents, kept once, save {_size(found.saved_bytes)}",
        soft_wrap=True,
    )
    if found.unreadable or found.unreferenced_bytes:
        console.print(
            f"{found.unreadable} results cannot be read, {_size(found.unreferenced_bytes)} belong to none: "
            "python -m ci cache gc",
            soft_wrap=True,
        )
    if found.oldest_use_seconds is not None and found.newest_use_seconds is not None:
        console.print(
            f"used: {_ago(found.newest_use_seconds)}; the least recent {_ago(found.oldest_use_seconds)}"
        )
    rows = [(escape(item.name), str(item.entries), _size(item.bytes)) for item in found.by_name]
    print_table(console, ("of", "results", "files"), rows)
    for user in found.users:
        console.print(f"in use by process {user.pid} on {escape(user.host)}: {user.keys} results")


# -- verify ----------------------------------------------------------------------------------------


def _run_verify(arguments: argparse.Namespace, console: Console) -> int:
    from ci.graph.inspection import verify

    store = _store(arguments, console)
    found = verify(store, remove=arguments.remove)
    if arguments.json:
        print_json({"folder": str(store.root), "removed": arguments.remove, **asdict(found)})
    if found.problems:
        done = "they were removed; " if arguments.remove else ""
        again = "run the build again" if arguments.remove else "python -m ci cache verify --remove"
        raise FindingError(
            f"{len(found.problems)} things in {store.root} are not as they were put "
            f"(of {found.entries} results and {found.blobs} contents)",
            cause=f"{done}a disk that failed, or somebody who wrote into the store",
            next_step=again,
            details=[f"{item.key[:12]}: {item.why}" for item in found.problems],
        )
    if not arguments.json:
        console.print(
            f"{found.entries} results and {found.blobs} contents ({_size(found.bytes)}) are as they were put"
        )
    return 0


# -- gc --------------------------------------------------------------------------------------------


def _run_gc(arguments: argparse.Namespace, console: Console) -> int:
    store = _store(arguments, console)
    done = store.gc(arguments.limit, dry_run=arguments.dry_run)
    if arguments.json:
        print_json({"folder": str(store.root), "dry_run": arguments.dry_run, **asdict(done)})
        return 0
    would = "would be " if arguments.dry_run else ""
    rows = [(item.key[:12], escape(item.name)) for item in done.evicted]
    if rows:
        print_table(console, (f"{would}evicted", "of"), rows)
    for digest in done.bad:
        console.print(f"{digest[:12]}: {would}removed: it cannot be read")
    if done.old_layout_bytes:
        console.print(f"{_size(done.old_layout_bytes)} of the first layout {would}removed")
    console.print(
        f"{_size(done.freed_bytes)} {would}freed; {done.left_entries} results, {_size(done.left_bytes)} stay"
        + f" ({done.kept} of them because builds that run use them)" * bool(done.kept)
    )
    return 0


# -- why -------------------------------------------------------------------------------------------


def _run_why(arguments: argparse.Namespace, console: Console) -> int:
    from ci.graph.inspection import why

    found = why(_store(arguments, console), arguments.key)
    if arguments.json:
        print_json(_why_document(found))
        return 0
    entry = found.entry
    console.print(f"{entry.key}: {escape(entry.name)}", soft_wrap=True)
    console.print(
        f"made {entry.made} on {escape(entry.host)}: {len(entry.files)} files, {_size(entry.size)}",
        soft_wrap=True,
    )
    for name, value in entry.meta.items():
        console.print(f"  {escape(name)}: {_short(str(value))}", soft_wrap=True)
    console.print("inputs:")
    for name, value in sorted(entry.inputs.items()):
        console.print(f"  {escape(name)}: {_short(value)}", soft_wrap=True)
    if found.other is None:
        console.print("no other result of it is stored")
        return 0
    console.print(f"compared with {found.other.key[:12]}, made {found.other.made}:")
    for change in found.changes:
        console.print(f"  {escape(change.name)}", soft_wrap=True)
        console.print(f"    there  {_short(change.old)}", soft_wrap=True)
        console.print(f"    here   {_short(change.new)}", soft_wrap=True)
    return 0


def _why_document(found: Why) -> dict[str, object]:
    entry, other = found.entry, found.other
    return {
        "key": entry.key,
        "name": entry.name,
        "made": entry.made,
        "host": entry.host,
        "files": len(entry.files),
        "size": entry.size,
        "content": entry.content,
        "meta": dict(entry.meta),
        "inputs": dict(entry.inputs),
        "compared_with": None if other is None else {"key": other.key, "made": other.made},
        "changes": [asdict(change) for change in found.changes],
    }


# -- words -----------------------------------------------------------------------------------------


def _short(value: str | None) -> str:
    if value is None:
        return "(not an input)"
    text = " ".join(value.split())
    return escape(text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}…")


def _size(count: int) -> str:
    return megabytes(count) or "0 bytes"


def _ago(seconds: float) -> str:
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name} ago"
    return "just now"
