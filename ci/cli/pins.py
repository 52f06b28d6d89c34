"""The verb ``pins``: check and update ``docker/pins.toml``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ci.cli.options import json_option, print_json
from ci.errors import ConfigError, FindingError, InfrastructureError
from ci.findings import Finding
from ci.registry import MATRIX, REPOSITORY
from ci.report.console import print_table

if TYPE_CHECKING:
    from ci.images.pin_check import Asked
    from ci.images.pin_edit import Change
    from ci.images.pins import ImagePin, Pins


def pins_verb(parser: argparse.ArgumentParser) -> None:
    """The options of ``pins``."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="check the file (what happens anyway)")
    what.add_argument(
        "--update",
        nargs="*",
        metavar="NAME",
        help="ask the registries and write their digests: of these images, or of all",
    )
    parser.add_argument(
        "--online", action="store_true", help="also ask the registries whether the digests hold"
    )
    parser.add_argument("--strict", action="store_true", help="an image without digest fails, too")
    json_option(parser)
    parser.set_defaults(run=_run_pins)


def _run_pins(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.update is None:
        return _check(arguments, console)
    if arguments.online or arguments.strict:
        raise ConfigError(
            "--update takes neither --online nor --strict",
            cause="it asks the registries anyway, and checks nothing else",
            next_step="python -m ci pins --check --online",
        )
    return _update(arguments.update, console, as_json=arguments.json)


def _check(arguments: argparse.Namespace, console: Console) -> int:
    from ci.images.pin_check import Asked, ask_registries, judge, placed
    from ci.images.pins import PINS, load_pins

    pins = load_pins(PINS)
    found = [*_offline(pins)]
    asked = Asked()
    if arguments.online:
        asked = ask_registries([pin for pin in pins.images if pin.digests])
        for pin in pins.images:
            if pin.name in asked.answers:
                found += judge(pin, asked.answers[pin.name])
    findings = placed(found, PINS.read_text("utf-8"))
    failing = [item for item in findings if _fails(item, strict=arguments.strict)]
    if arguments.json:
        print_json(_document(pins, findings, asked))
    else:
        _print_images(console, pins.images)
        _print_findings(console, findings)
        _print_end(console, pins.images, failing, asked, online=arguments.online)
    _raise_silent(asked)
    return 1 if failing else 0


def _offline(pins: Pins) -> Iterable[Finding]:
    from ci.images import pin_check
    from ci.images.pins import PINS
    from ci.matrix.load import load

    yield from pin_check.check_uses(pins, load(MATRIX).cudas)
    yield from pin_check.check_files(pins, PINS.parent)
    yield from pin_check.check_tools(pins, REPOSITORY)
    yield from pin_check.check_pinned(pins)


def _fails(finding: Finding, *, strict: bool) -> bool:
    """A missing digest is a warning: where no registry can be reached, nothing mends it."""
    return finding.level == "error" or (strict and finding.rule == "unpinned")


def _update(names: Sequence[str], console: Console, *, as_json: bool) -> int:
    from ci.images.pin_check import ask_registries
    from ci.images.pins import PINS, load_pins

    chosen = _chosen(load_pins(PINS), names)
    asked = ask_registries(chosen)
    changed, wrong = _written(chosen, asked)
    if as_json:
        values = [vars(change) for change in changed]
        print_json({"schema": 1, "changes": values, "silent": _reasons(asked)})
    for change in () if as_json else changed:
        console.print(f"{change.name} {change.key}", markup=False)
        console.print(f"  - {change.old or 'absent'}", markup=False, soft_wrap=True)
        console.print(f"  + {change.new or 'absent'}", markup=False, soft_wrap=True)
    if not as_json:
        images = len({change.name for change in changed})
        console.print(f"{PINS.name}: {images} of {len(chosen)} images changed", markup=False)
    _raise_silent(asked)
    if wrong:
        raise FindingError(
            f"{len(wrong)} images have no digest that could be written",
            cause=wrong[0],
            next_step="name images and tags that exist, then run the same command again",
            details=wrong,
        )
    return 0


def _written(chosen: Sequence[ImagePin], asked: Asked) -> tuple[list[Change], list[str]]:
    """Write what registries answered: the changes, and what is wrong with images that have no digest."""
    from ci.images.pin_check import own_digests
    from ci.images.pin_edit import changes, edited, save
    from ci.images.pins import PINS, parse_reference

    text = PINS.read_text("utf-8")
    today = datetime.now(timezone.utc).date()
    changed: list[Change] = []
    wrong: list[str] = []
    for pin in chosen:
        answer = asked.answers.get(pin.name)
        if answer is None:
            continue
        digests = own_digests(answer)
        if not digests:
            known = ", ".join(answer.found) or "no such tag"
            wrong.append(f"{pin.name}: {pin.reference}: {answer.refused or known}")
            continue
        new = changes(pin, digests)
        if new:
            host = parse_reference(pin.reference).registry
            text = edited(text, pin.name, digests, f"the registry {host}, asked for the tag", today)
            changed += new
    if changed:
        save(text, PINS)
    return changed, wrong


def _chosen(pins: Pins, names: Sequence[str]) -> list[ImagePin]:
    from ci.matrix.schema import suggest

    known = {pin.name: pin for pin in pins.images}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"no image is called {unknown[0]!r}; {suggest(unknown[0], [*known])}",
            cause="docker/pins.toml has the images' names",
            next_step="python -m ci pins --check",
        )
    return [known[name] for name in dict.fromkeys(names)] if names else [*pins.images]


def _raise_silent(asked: Asked) -> None:
    """One error for all registries that did not answer: what they have is not known."""
    if not asked.silent:
        return
    first = next(iter(asked.silent.values()))
    raise InfrastructureError(
        first.message,
        cause=first.cause,
        next_step=first.next_step,
        details=[f"not known: {name} ({why})" for name, why in _reasons(asked).items()],
    )


def _reasons(asked: Asked) -> dict[str, str]:
    return {name: error.message for name, error in asked.silent.items()}


def _document(pins: Pins, findings: Sequence[Finding], asked: Asked) -> Mapping[str, object]:
    return {
        "schema": 1,
        "images": [_image(pin) for pin in pins.images],
        "tools": dict(pins.tools),
        "findings": [vars(item) for item in findings],
        "silent": _reasons(asked),
    }


def _image(pin: ImagePin) -> dict[str, Any]:
    from ci.images.pin_check import ARCHITECTURE
    from ci.images.pins import NotPinned, pinned_reference

    pinned = pinned_reference(pin, ARCHITECTURE)
    return {
        **vars(pin),
        "seen": str(pin.seen) if pin.seen else None,
        "pinned": None if isinstance(pinned, NotPinned) else pinned,
    }


def _print_images(console: Console, images: Sequence[ImagePin]) -> None:
    rows = [
        (pin.name, pin.reference, ", ".join(pin.digests) or "[yellow]none[/yellow]")
        for pin in images
    ]
    print_table(console, ("image", "tag", "digests"), rows)


def _print_findings(console: Console, findings: Sequence[Finding]) -> None:
    for item in findings:
        place = f"{item.place}:{item.line}" if item.line else item.place
        console.print(
            f"{place}: {item.level} {item.rule}: {item.why}", markup=False, soft_wrap=True
        )
        console.print(f"  {item.mend}", markup=False, soft_wrap=True)


def _print_end(
    console: Console,
    images: Sequence[ImagePin],
    failing: Sequence[Finding],
    asked: Asked,
    *,
    online: bool,
) -> None:
    pinned = sum(_image(pin)["pinned"] is not None for pin in images)
    silent = f", not answered for {len(asked.silent)}" if asked.silent else ""
    told = f"; registries answered for {len(asked.answers)}{silent}" if online else ""
    end = f"{len(failing)} findings that fail" if failing else "no finding that fails"
    console.print(f"{pinned} of {len(images)} images are pinned{told}; {end}", markup=False)
