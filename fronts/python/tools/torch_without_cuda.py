"""Makes PyPI's CUDA build of PyTorch importable on a machine without CUDA's libraries.

PyPI has one build of PyTorch for Linux, and it links 2.5 GB of NVIDIA's libraries, of which CPU tensors need none. This
script puts CUDA's runtime (2 MB, from the package nvidia-cuda-runtime) beside torch's own libraries, and in place of every
other missing library one that defines the symbols torch asks it for as functions that do nothing. `torch` then imports, says
that there is no GPU, and computes on the CPU. Whatever calls into such a library would be wrong, and without a GPU nothing does.

Run it with the Python whose torch it is to mend, after

    pip install --no-deps torch typing_extensions sympy mpmath networkx jinja2 fsspec filelock markupsafe numpy setuptools \
        nvidia-cuda-runtime

It needs readelf and gcc, and does nothing where every library is there.
"""

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import defaultdict
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
LIBRARIES = SITE / "torch" / "lib"

# Libraries whose symbols carry no version: the beginnings of their names.
PREFIXES = {
    "libcusparseLt": "cusparseLt",
    "libcufile": "cuFile",
    "libnccl": "(p?nccl)",
    "libnvrtc": "nvrtc",
    "libcupti": "cupti",
    "libcudnn": "cudnn",
    "libnvshmem": "nvshmem",
}
# Libraries whose symbols carry a version other than the library's file name.
VERSIONS = {"libnvshmem": "NVSHMEM"}


def readelf(*arguments: str) -> str:
    return subprocess.run(["readelf", "--wide", *arguments], check=True, capture_output=True, text=True).stdout


def needed(library: Path) -> set[str]:
    """The libraries that one asks for."""
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("--dynamic", str(library))))


def undefined(library: Path) -> set[tuple[str, str]]:
    """The symbols that a library asks others for, each with its version or ''."""
    symbols = re.findall(r"\bUND (\S+?)(?:@@?(\S+))?(?: \(\d+\))?$", readelf("--dyn-syms", str(library)), re.MULTILINE)
    return set(symbols)


def is_found(name: str) -> bool:
    """Whether the loader finds a library beside torch's or among the system's."""
    if (LIBRARIES / name).exists():
        return True
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    return re.search(rf"^\s*{re.escape(name)} ", cache, re.MULTILINE) is not None


def copy_runtime() -> None:
    """Puts CUDA's runtime beside torch's libraries."""
    for runtime in SITE.glob("nvidia/**/libcudart.so.*"):
        shutil.copy(runtime, LIBRARIES)


def stand_in(name: str, symbols: set[tuple[str, str]]) -> None:
    """Makes a library called `name` that defines the symbols which belong to it."""
    stem = name.split(".so")[0]
    prefix = next((prefix for start, prefix in PREFIXES.items() if name.startswith(start)), None)
    version = next((version for start, version in VERSIONS.items() if name.startswith(start)), name)
    by_version = defaultdict(set)
    for symbol, of in symbols:
        if of == version or (of == "" and prefix and re.match(prefix, symbol)):
            by_version[of].add(symbol)
    functions = set().union(*by_version.values()) if by_version else {stem + "_is_a_stand_in"}
    script = "".join(f"{of} {{ global: {'; '.join(sorted(names))}; }};\n" for of, names in by_version.items() if of)
    with tempfile.TemporaryDirectory() as folder:
        source, versions = Path(folder, "stand_in.c"), Path(folder, "versions")
        source.write_text("".join(f"void {function}(void) {{}}\n" for function in sorted(functions)))
        versions.write_text(script)
        command = ["gcc", "-w", "-shared", "-fPIC", "-o", str(LIBRARIES / name), str(source), f"-Wl,-soname,{name}"]
        subprocess.run(command + ([f"-Wl,--version-script={versions}"] if script else []), check=True)


def main() -> None:
    copy_runtime()
    libraries = [path for path in LIBRARIES.glob("*.so*") if path.is_file()]
    missing = {name for library in libraries for name in needed(library) if not is_found(name)}
    symbols = set().union(*(undefined(library) for library in libraries))
    for name in sorted(missing):
        stand_in(name, symbols)
    print(f"{len(missing)} stand-in libraries in {LIBRARIES}")


if __name__ == "__main__":
    main()
