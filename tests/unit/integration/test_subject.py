"""What a check is about: names, folders and places, and what is said of those that are none."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ci.errors import ConfigError, InfrastructureError
from ci.integration.source_tree import SourceTree
from ci.integration.subject import Subject, check_text, packages_of, resolve_subjects, tree_of
from ci.registry import REPOSITORY, EcosystemLibrary, build_utils, libraries_of
from ci.sources.override import parse_overrides

LibraryMaker = Callable[..., EcosystemLibrary]
TEMPLATES = tuple(libraries_of("templates", ()))
FLEET = tuple(libraries_of("fleet", ()))


def write(folder: Path, *names: str, text: str = "import torch\n") -> Path:
    """Files below ``folder``, which comes back."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def resolve(
    texts: Sequence[str],
    tmp_path: Path,
    libraries: Sequence[EcosystemLibrary] = TEMPLATES,
    sources: Sequence[str] = (),
) -> tuple[Subject, ...]:
    overrides = parse_overrides(sources, [library.name for library in libraries])
    return resolve_subjects(texts, libraries, overrides, tmp_path / "cache")


def one(text: str | Path, tmp_path: Path, **options: Sequence[EcosystemLibrary]) -> Subject:
    (subject,) = resolve([str(text)], tmp_path, **options)  # type: ignore[arg-type]
    return subject


def tree(subject: Subject, libraries: Sequence[EcosystemLibrary] = TEMPLATES) -> SourceTree:
    return tree_of(subject, libraries)


# -- declared libraries ----------------------------------------------------------------------------


def test_a_name_is_a_declared_library_with_its_declaration(tmp_path: Path) -> None:
    subject = one("fused-norm", tmp_path)
    (declared,) = [item for item in TEMPLATES if item.name == "fused-norm"]
    assert subject.library is declared
    assert subject.folder == declared.source_dir
    assert subject.origin == "template packages/templates/cuda_extension"
    assert (subject.override, subject.why_not, subject.borrowed) == (None, "", False)
    read = tree(subject)
    assert set(read.packages) == {declared.module}
    assert read.scope >= set(declared.compat_scope)
    for module in read.own():
        assert (REPOSITORY / module.place).is_file()
        assert module.place.startswith("packages/templates/cuda_extension/")


def test_without_a_text_every_declared_library_is_a_subject_in_its_order(tmp_path: Path) -> None:
    names = [subject.name for subject in resolve([], tmp_path)]
    assert names == [library.name for library in TEMPLATES]
    assert resolve([], tmp_path, libraries=()) == ()


def test_a_text_that_is_given_twice_is_one_subject(tmp_path: Path) -> None:
    (subject,) = resolve(["fused-norm", "fused-norm"], tmp_path)
    assert subject.name == "fused-norm"


def test_a_declared_name_goes_before_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "fused-norm", "other/__init__.py")
    monkeypatch.chdir(tmp_path)
    assert one("fused-norm", tmp_path).library is not None
    assert one("./fused-norm", tmp_path).library is None


def test_a_name_of_no_library_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown library 'fused-nrm'; nearest: fused-norm"):
        resolve(["fused-nrm"], tmp_path)


def test_other_sources_of_a_declared_library(tmp_path: Path) -> None:
    other = write(tmp_path / "other", "src/fused_norm/__init__.py", "src/fused_norm/kernels.py")
    (subject,) = resolve(["fused-norm"], tmp_path, sources=[f"fused-norm=path:{other}"])
    assert subject.library is not None
    assert subject.override is not None
    assert (subject.folder, subject.origin, subject.borrowed) == (other, "path:other", False)
    places = {module.name: module.place for module in tree(subject).own()}
    assert places == {
        "fused_norm": "src/fused_norm/__init__.py",
        "fused_norm.kernels": "src/fused_norm/kernels.py",
    }


def test_other_sources_that_lack_the_package_are_refused(tmp_path: Path) -> None:
    other = write(tmp_path / "other", "something/__init__.py")
    (subject,) = resolve(["fused-norm"], tmp_path, sources=[f"fused-norm=path:{other}"])
    with pytest.raises(ConfigError, match="fused-norm hold no package 'fused_norm'") as caught:
        packages_of(subject)
    assert "--source fused-norm=" in caught.value.next_step


def test_a_library_whose_submodule_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    """Those of this checkout: git says which submodules are not checked out (a leading minus)."""
    told = subprocess.run(
        ("git", "submodule", "status"), cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    empty = {
        Path(line.split()[1]).name for line in told.stdout.splitlines() if line.startswith("-")
    }
    subjects = {subject.name: subject for subject in resolve([], tmp_path, libraries=FLEET)}
    pinned = {library.name for library in FLEET if library.pin}
    assert {n for n, s in subjects.items() if s.why_not == "not checked out"} == empty & pinned
    for name in empty & pinned:
        assert subjects[name].next_step.startswith("git submodule update --init")
        assert f"third_party/{name}" in subjects[name].next_step
    for name in set(subjects) - pinned:
        assert "not pinned yet" in subjects[name].why_not
        assert f"--source {name}=path:DIR" in subjects[name].next_step


# -- folders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Dao-AILab+quack", "my sources", "模块", "a@b==1", ".hidden"])
@pytest.mark.parametrize("form", ["{}", "path:{}", "{}/", "{}/../{name}"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str, form: str) -> None:
    folder = write(tmp_path / name, "inner/__init__.py", "inner/deep/__init__.py")
    subject = one(form.format(folder, name=name), tmp_path)
    assert (subject.name, subject.folder, subject.library) == (name, folder, None)
    assert subject.origin == f"path:{name}"
    assert {m.name: m.place for m in tree(subject).own()} == {
        "inner": "inner/__init__.py",
        "inner.deep": "inner/deep/__init__.py",
    }


def test_a_folder_is_found_from_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "here" / "lib", "inner/__init__.py")
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    monkeypatch.chdir(folder.parent)
    for text in ("lib", "./lib", "~/lib", "../here/lib"):
        assert one(text, tmp_path).folder == folder
    monkeypatch.chdir(folder)
    assert one(".", tmp_path).name == "lib"


def test_the_package_itself_is_read_as_the_package(tmp_path: Path) -> None:
    package = write(tmp_path / "inner", "__init__.py", "deep/__init__.py")
    subject = one(package, tmp_path)
    assert subject.is_package
    assert packages_of(subject) == {"inner": package}
    assert [m.place for m in tree(subject).own()] == ["inner/__init__.py", "inner/deep/__init__.py"]


def test_a_package_that_nothing_can_import_is_refused(tmp_path: Path) -> None:
    subject = one(write(tmp_path / "my-lib", "__init__.py"), tmp_path)
    with pytest.raises(ConfigError, match="no import statement can name a package 'my-lib'"):
        packages_of(subject)


def test_a_folder_of_the_repository_has_places_of_the_repository(tmp_path: Path) -> None:
    inside = one(REPOSITORY / "packages" / "templates" / "ep_comm", tmp_path, libraries=())
    assert inside.in_repository
    assert all((REPOSITORY / module.place).is_file() for module in tree(inside, ()).own())
    assert not one(write(tmp_path / "lib", "inner/__init__.py"), tmp_path).in_repository


def test_nothing_is_written_into_a_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "lib", "inner/__init__.py")
    (folder / "dangling").symlink_to("nowhere")
    before = sorted(folder.rglob("*"))
    tree(one(folder, tmp_path))
    assert sorted(folder.rglob("*")) == before
    assert not (tmp_path / "cache").exists()


def test_a_folder_without_packages_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "lib", "tests/__init__.py", "README.md")
    with pytest.raises(ConfigError, match="no Python package in") as caught:
        resolve([str(folder)], tmp_path)
    assert "folder that holds the package" in caught.value.next_step


def test_two_subjects_of_one_name_are_refused(tmp_path: Path) -> None:
    """Findings are told apart by the name: they would be shown twice, each below the other's."""
    folders = [
        str(write(tmp_path / side / "lib", "inner/__init__.py").resolve()) for side in ("a", "b")
    ]
    with pytest.raises(ConfigError, match="are called 'lib'") as caught:
        resolve(folders, tmp_path)
    assert caught.value.next_step == "check one after the other"
    borrowed = write(tmp_path / "c", "fused_norm/__init__.py")
    with pytest.raises(ConfigError, match="are called 'fused-norm'"):
        resolve(["fused-norm", str(borrowed)], tmp_path)


# -- borrowed declarations -------------------------------------------------------------------------


def test_a_folder_with_a_declared_package_borrows_that_declaration(tmp_path: Path) -> None:
    folder = write(tmp_path / "upstream", "fused_norm/__init__.py")
    subject = one(folder, tmp_path)
    (declared,) = [item for item in TEMPLATES if item.name == "fused-norm"]
    assert (subject.name, subject.library, subject.borrowed) == ("fused-norm", declared, True)
    assert "declaration of fused-norm" in subject.notes[0]
    assert tree(subject).scope >= set(declared.compat_scope)


def test_names_of_the_sources_count_and_not_those_of_the_wheel(
    make_library: LibraryMaker, tmp_path: Path
) -> None:
    """An artifact may be renamed when it is collected: sources hold its name before that."""
    library = make_library(
        "beta",
        artifacts=(build_utils.Artifact("python/beta_src/__init__.py", "beta"),),
        module="beta",
    )
    renamed = make_library("gamma", artifacts=(build_utils.Artifact("gamma_src", "gamma"),))
    module = make_library("delta", artifacts=(build_utils.Artifact("delta_src.py", "delta.py"),))
    lone = write(tmp_path / "z", "delta_src.py")
    assert one(lone, tmp_path, libraries=[library, module]).library is module
    folder = write(tmp_path / "x", "gamma_src/__init__.py")
    assert one(folder, tmp_path, libraries=[library, renamed]).library is renamed
    other = write(tmp_path / "y", "gamma/__init__.py")
    assert one(other, tmp_path, libraries=[library, renamed]).library is None


def test_the_scope_is_that_of_the_declaration_and_the_packages_there(
    make_library: LibraryMaker, tmp_path: Path
) -> None:
    wide = make_library("beta", compat_scope=("beta", "triton"))
    subject = one(write(tmp_path / "x", "beta/__init__.py"), tmp_path, libraries=[wide])
    assert tree(subject, [wide]).scope == {"beta", "triton"}
    plain = one(write(tmp_path / "y", "gamma/__init__.py"), tmp_path, libraries=[wide])
    assert tree(plain, [wide]).scope == {"gamma"}


# -- what is no place ------------------------------------------------------------------------------

BAD = {
    "a release without a version": (
        "pypi:quack-kernels",
        "pypi:quack-kernels is not of the form pypi:PROJECT==VERSION",
        "python -m pip index versions quack-kernels",
    ),
    "a version that is none": ("pypi:quack==one", "of the form", "pip index versions quack"),
    "no project": ("pypi:==1.0", "of the form pypi:PROJECT==VERSION", "versions PROJECT==VERSION"),
    "a repository without a revision": (
        "git:https://example.org/team/lib.git",
        "is not of the form git:URL@REV",
        "git ls-remote https://example.org/team/lib.git",
    ),
    "a user's @ is no revision": ("git:ssh://git@example.org", "git:URL@REV", "git ls-remote"),
    "nothing behind the @": ("git:https://example.org/x.git@", "git:URL@REV", "git ls-remote"),
    "an absolute path": ("/no/such/folder", "/no/such/folder is no folder", "check FOLDER"),
    "a relative path": ("no/such", "no/such is no folder", "check FOLDER"),
    "a path with its kind": ("path:nowhere", "nowhere is no folder", "check FOLDER"),
    "a file": ("file.py", "file.py is no folder", "check FOLDER"),
    "a home that there is not": ("~nobody-of-this-name/x", "is no folder", "check FOLDER"),
    "nothing": ("", "unknown library ''", "python -m ci libraries"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_place_is_refused_with_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text, told, command = BAD[name]
    write(tmp_path, "file.py")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        check_text(text, TEMPLATES)
    assert told in caught.value.message
    assert command in caught.value.next_step
    assert caught.value.cause
    assert "--source" not in str(caught.value.as_dict())  # nobody wrote that option
    with pytest.raises(ConfigError):
        resolve([text], tmp_path)
    assert not (tmp_path / "cache").exists()


def test_a_file_is_called_a_file(tmp_path: Path) -> None:
    write(tmp_path, "x.py")
    with pytest.raises(ConfigError) as caught:
        check_text(str(tmp_path / "x.py"), TEMPLATES)
    assert caught.value.cause.endswith("x.py is a file")


def test_everything_wrong_is_told_at_once_before_anything_is_fetched(tmp_path: Path) -> None:
    texts = ["fused-nrm", "pypi:quack", "git:https://example.org/lib.git@main", "/no/such"]
    with pytest.raises(ConfigError) as caught:
        resolve(texts, tmp_path)
    told = "\n".join(caught.value.details)
    for part in ("'fused-nrm'", "pypi:quack is not", "/no/such is no folder"):
        assert part in told
    assert "example.org" not in told
    assert not (tmp_path / "cache").exists()


# -- repositories ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{0}@{1}", "file://{0}@{1}", "{0}@v1.0", "{0}@main"])
def test_a_repository_at_a_revision(
    tmp_path: Path, git: Callable[..., str], commit_files: Callable[..., str], form: str
) -> None:
    repository = tmp_path / "team" / "my-lib.git"
    commit = commit_files(repository, {"inner/__init__.py": "import torch\n"})
    git("tag", "v1.0", cwd=repository)
    subject = one(f"git:{form.format(repository, commit)}", tmp_path)
    assert (subject.name, subject.library) == ("my-lib", None)
    assert git("rev-parse", "HEAD", cwd=subject.folder) == commit
    assert [module.place for module in tree(subject).own()] == ["inner/__init__.py"]
    assert subject.override is not None


def test_a_repository_that_is_not_there_is_infrastructure(
    tmp_path: Path, git: Callable[..., str]
) -> None:
    assert git("--version")
    with pytest.raises(InfrastructureError, match="git clone failed"):
        resolve([f"git:{tmp_path}/none.git@main"], tmp_path)


def test_a_project_with_a_stray_init_is_no_package_itself(tmp_path: Path) -> None:
    """Some repositories have an ``__init__.py`` beside their pyproject.toml."""
    files = ("__init__.py", "pyproject.toml", "alpha/__init__.py")
    subject = one(write(tmp_path / "my-lib", *files), tmp_path)
    assert not subject.is_package
    assert set(packages_of(subject)) == {"alpha"}
