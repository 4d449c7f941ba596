"""The wheel and the sdist as built from this checkout, installed, and used from elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.packaging
if not (ROOT / ".git").exists():
    pytest.skip("not a git checkout: no list to compare with", allow_module_level=True)

# Says where the data files are, seen from the interpreter that runs it.
WHERE = """
import orchestrator, sys
from orchestrator import resources
print(orchestrator.__file__)
for kind in ("templates", "site"):
    print(kind, *sorted(entry.name for entry in resources.root(kind).iterdir()))
"""


def attempt(argv: Sequence[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without this environment's paths."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_", "VIRTUAL_"))}
    words = [str(word) for word in argv]
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def run(argv: Sequence[str | Path], cwd: Path = Path("/")) -> str:
    """Run a command that must work and return what it printed."""
    done = attempt(argv, cwd)
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
    return done.stdout


def tracked(*folders: str) -> set[str]:
    return set(run(["git", "ls-files", "--", *folders], cwd=ROOT).splitlines())


def build(out: Path, *options: str) -> Path:
    """Build with the tools of this environment and return the wheel."""
    run([sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", out, ROOT])
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the checkout."""
    return build(tmp_path_factory.mktemp("direct"), "--wheel")


@pytest.fixture(scope="module")
def by_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist, which lies beside it."""
    return build(tmp_path_factory.mktemp("sdist"))


def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_the_tracked_data_files_and_no_other(direct: Path) -> None:
    data = ("orchestrator/templates/", "orchestrator/site/")
    shipped = {name for name in files(direct) if name.startswith(data)}
    assert shipped == {f"orchestrator/{name}" for name in tracked("templates", "site")}


def test_the_wheel_has_the_tracked_modules_and_nothing_else(direct: Path) -> None:
    rest = {name for name in files(direct) if ".dist-info/" not in name}
    assert rest == tracked("orchestrator") | {
        f"orchestrator/{name}" for name in tracked("templates", "site")
    }
    assert "orchestrator/py.typed" in rest


def test_the_sdist_gives_the_same_wheel(direct: Path, by_sdist: Path) -> None:
    assert files(by_sdist) == files(direct)
    with zipfile.ZipFile(direct) as one, zipfile.ZipFile(by_sdist) as other:
        for name in files(direct):
            assert name.endswith("RECORD") or one.read(name) == other.read(name)


def test_the_sdist_has_what_is_tracked(by_sdist: Path) -> None:
    (sdist,) = by_sdist.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked("orchestrator", "templates", "site", "tests", "jobs") <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("runs/")]


def test_a_private_profile_stays_at_home(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in tracked():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    (copy / "site" / "private-lab.yaml").write_text("name: secret\n")
    out = tmp_path / "out"
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy])
    (wheel,) = out.glob("*.whl")
    assert not [name for name in files(wheel) if "private" in name]


# --- installed --------------------------------------------------------------------------------


def environment(place: Path, *what: str | Path) -> Path:
    """Install into a fresh environment that sees our dependencies, and return its bin folder."""
    venv.create(place, symlinks=True)
    here = {"base": str(place), "platbase": str(place)}
    packages = Path(sysconfig.get_path("purelib", vars=here))
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(sorted(ours)) + "\n")
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        place / "bin" / "python",
        "--quiet",
    ]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    # What this environment has is not to be taken for an installation in the other one.
    run([*pip, "install", "--force-reinstall", "--ignore-installed", *options, *what])
    return place / "bin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, direct: Path) -> Path:
    """The bin folder of an environment with the wheel."""
    return environment(tmp_path_factory.mktemp("installed"), direct)


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with `pip install -e`."""
    return environment(tmp_path_factory.mktemp("editable"), "--editable", ROOT)


def where(bin_: Path) -> tuple[Path, dict[str, list[str]]]:
    module, *lines = run([bin_ / "python", "-I", "-c", WHERE]).splitlines()
    found = {line.split()[0]: line.split()[1:] for line in lines}
    return Path(module), found


def expected() -> dict[str, list[str]]:
    return {
        kind: sorted(Path(name).name for name in tracked(kind)) for kind in ("templates", "site")
    }


def test_an_installed_wheel_finds_its_files(installed: Path) -> None:
    module, found = where(installed)
    assert module.is_relative_to(installed.parent)
    assert found == expected()


def test_an_editable_install_finds_the_files_of_the_checkout(editable: Path) -> None:
    module, found = where(editable)
    assert module == ROOT / "orchestrator" / "__init__.py"
    assert found == expected()


@pytest.mark.parametrize("kind", ["installed", "editable"])
def test_the_command_works_from_anywhere(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bin_: Path = request.getfixturevalue(kind)
    version = run([bin_ / "python", "-I", "-c", "import orchestrator as o; print(o.__version__)"])
    assert "Usage: fsdpq" in run([bin_ / "fsdpq", "--help"])
    assert run([bin_ / "fsdpq", "--version"]).split()[-1] == version.strip()
    assert "Usage: fsdpq" in run([bin_ / "python", "-m", "orchestrator", "--help"])
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("site: local\nscript: train.py\n")
    printed = run([bin_ / "fsdpq", "render", tmp_path / "job.yaml"])
    assert f"{bin_}/python -m torch.distributed.run" in printed


def test_a_broken_installation_says_so(tmp_path: Path, direct: Path) -> None:
    bin_ = environment(tmp_path / "broken", direct)
    module, _ = where(bin_)
    shutil.rmtree(module.parent / "templates")
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("site: local\nscript: train.py\n")
    done = attempt([bin_ / "fsdpq", "render", tmp_path / "job.yaml"], cwd=Path("/"))
    assert done.returncode == 1
    assert "installed without its templates/ files" in done.stderr
    assert "Traceback" not in done.stderr
