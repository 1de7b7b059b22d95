"""The rules of the code as a whole: who may import whom, how large things may grow, what is banned.

Each rule is a function from sources to complaints, tried on a source that breaks it as well as on
Dragoman.
"""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A package imports only those before it.
ORDER = (
    "errors presets config text corpus model training decoding evaluation inspection documents "
    "serving interop scale cli __main__"
).split()
# `dragoman/__init__.py` is the public face: it may name what any package makes, and no package
# imports from it, except the version.
FACE = {"__version__"}

FILE_LINES = 400
FUNCTION_LINES = 60
PARAMETERS = 8
# Typer reads a command's options off its signature, so there a parameter is an option a person
# can type; the bound keeps the options themselves few.
COMMAND_PARAMETERS = 20

IMPORTERS = {"importlib.import_module", "import_module", "__import__"}
FORBIDDEN_FILES = {"utils.py", "helpers.py", "common.py"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal"}
FORBIDDEN_CALLS = {"eval", "exec", "os.system", "os.popen", "subprocess.getoutput"}
# Written so that the patterns do not match themselves.
FOREIGN_TEXT = {
    "a path of one machine": re.compile(r"(?<![\w.~])/(?:home|root|work|Users|opt|tmp)/\w+"),
    "a registry host": re.compile(
        r"(?:\bpypi|pythonhosted|download[.]pytorch|anaconda)[.]org|npmjs[.]com|huggingface[.]co"
    ),
}
HEAVY = ["torch", "pyarrow", "sentencepiece", "matplotlib", "sacrebleu", "pandas"]

Sources = dict[str, str]  # path below the repository, with "/" -> text
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def read_sources(*folders: str) -> Sources:
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}


PRODUCT = read_sources("dragoman")
EVERYTHING = read_sources("dragoman", "tests", "docs", "benchmarks")


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def package_of(module: str) -> str:
    """The part below `dragoman`: "text" for dragoman.text.lines, "" for dragoman itself."""
    return f"{module}.".split(".")[1]


def imported_names(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported, wherever the import stands."""
    module = module_name(path)
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            start = ".".join(part for part in (base, node.module) if part)
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in IMPORTERS:
            yield from (
                (node.lineno, str(a.value)) for a in node.args if isinstance(a, ast.Constant)
            )


def import_complaints(sources: Sources) -> list[str]:
    found = []
    for path, text in sources.items():
        own = package_of(module_name(path))
        if own and own not in ORDER:
            found.append(f"{path}: '{own}' has no place in the order of the packages")
            continue
        for line, name in imported_names(path, ast.parse(text)):
            top, other = name.split(".")[0], package_of(name)
            if top in {"tests", "conftest"}:
                found.append(f"{path}:{line}: imports {name}")
            if top != "dragoman" or not own or other == own or other in FACE:
                continue
            if other not in ORDER:
                found.append(f"{path}:{line}: {name} comes from the public face")
            elif ORDER.index(other) > ORDER.index(own):
                found.append(f"{path}:{line}: '{own}' imports '{other}', which comes after it")
    return found


def find_cycle(sources: Sources) -> list[str]:
    """The modules of one import cycle, counting imports inside functions; empty: there is none."""
    modules = {module_name(path) for path in sources} - {"dragoman"}
    graph: dict[str, set[str]] = {}
    for path, text in sources.items():
        for _, name in imported_names(path, ast.parse(text)):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and module_name(path) in modules:
                graph.setdefault(module_name(path), set()).add(target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [str(module) for module in error.args[1]]
    return []


def is_command(path: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = [ast.unparse(node) for node in function.decorator_list]
    return path.startswith("dragoman/cli/") and any(
        re.search(r"\.(command|callback)\(", text) for text in decorators
    )


def count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    starred = [item for item in (arguments.vararg, arguments.kwarg) if item]
    bound = bool(named) and named[0].arg in {"self", "cls"}
    return len(named) + len(starred) - bound


def size_complaints(sources: Sources) -> list[str]:
    found = []
    for path, text in sources.items():
        lines = len(text.splitlines())
        if lines > FILE_LINES:
            found.append(f"{path}: {lines} lines > {FILE_LINES}")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, FUNCTIONS):
                continue
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                found.append(f"{path}:{node.lineno}: {node.name}: {lines} lines > {FUNCTION_LINES}")
            limit = COMMAND_PARAMETERS if is_command(path, node) else PARAMETERS
            if (count := count_parameters(node)) > limit:
                found.append(f"{path}:{node.lineno}: {node.name}: {count} parameters > {limit}")
    return found


def is_constant(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def call_complaints(sources: Sources) -> list[str]:
    found = []
    for path, text in sources.items():
        tree = ast.parse(text)
        for line, name in imported_names(path, tree):
            if name.split(".")[0] in FORBIDDEN_MODULES:
                found.append(f"{path}:{line}: imports {name}")
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            shell = "shell" in keywords and not is_constant(keywords["shell"], False)
            pickled = "allow_pickle" in keywords and not is_constant(
                keywords["allow_pickle"], False
            )
            trusting = called == "torch.load" and not is_constant(
                keywords.get("weights_only"), True
            )
            if called in FORBIDDEN_CALLS or shell or pickled or trusting:
                found.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    return found


def settings_of(tree: ast.Module) -> set[str]:
    """Fields of every class that descends from pydantic's BaseModel, as "Class.field"."""
    models = {"BaseModel"}
    fields = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(b) in models for b in node.bases):
            models.add(node.name)
            fields |= {
                f"{node.name}.{item.target.id}"
                for item in node.body
                if isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and "ClassVar" not in ast.unparse(item.annotation)
            }
    return fields


def attributes_read(tree: ast.AST, of_self: bool) -> set[str]:
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and (isinstance(node.value, ast.Name) and node.value.id == "self") == of_self
    }


def unread_settings(sources: Sources) -> set[str]:
    """Settings that no code outside config.py reads, itself or through a property that it reads.

    `self.field` outside config.py is some other object's attribute and does not count.
    """
    config = ast.parse(sources["dragoman/config.py"])
    others = [ast.parse(s) for path, s in sources.items() if path != "dragoman/config.py"]
    read = set[str]().union(*(attributes_read(tree, of_self=False) for tree in others))
    properties = [
        node
        for node in ast.walk(config)
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator).endswith("property") for decorator in node.decorator_list)
    ]
    for _ in properties:  # a property may read another one
        for node in properties:
            if node.name in read:
                read |= attributes_read(node, of_self=True)
    return {setting for setting in settings_of(config) if setting.split(".")[1] not in read}


def text_complaints(texts: dict[str, str]) -> list[str]:
    return [
        f"{path}:{number}: {what}: {match[0]}"
        for path, text in texts.items()
        for number, line in enumerate(text.split("\n"), 1)
        for what, pattern in FOREIGN_TEXT.items()
        if (match := pattern.search(line))
    ]


def repository_texts() -> dict[str, str]:
    """Every text file that is, or is about to be, committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to it is not known")
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    texts = {}
    for name in filter(None, listing.decode().split("\0")):
        content = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b"\0"
        if b"\0" not in content:
            texts[name] = content.decode("utf-8", "replace")
    return texts


def test_packages_import_in_one_direction() -> None:
    assert import_complaints(PRODUCT) == []


def test_no_module_imports_itself_by_a_detour() -> None:
    assert find_cycle(PRODUCT) == []


def test_sizes_stay_within_the_budgets() -> None:
    assert size_complaints(EVERYTHING) == []


def test_no_file_is_named_for_anything_at_all() -> None:
    assert [path for path in EVERYTHING if Path(path).name in FORBIDDEN_FILES] == []


def test_nothing_executes_what_it_reads() -> None:
    shipped = {path: s for path, s in EVERYTHING.items() if not path.startswith("tests/")}
    assert call_complaints(shipped) == []


def test_every_setting_is_read() -> None:
    assert unread_settings(PRODUCT) == set()


def test_no_machine_and_no_registry_is_named() -> None:
    assert text_complaints(repository_texts()) == []


@pytest.mark.parametrize(
    "statement",
    [
        "import dragoman, dragoman.cli",
        "from dragoman.cli import main; sys.argv = ['dragoman', '--help']; main()",
    ],
)
def test_the_command_line_starts_without_heavy_libraries(statement: str) -> None:
    code = f"""
import sys
try:
    {statement}
except SystemExit as end:
    assert not end.code, end.code
print(sorted(set({HEAVY}) & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr.strip()) == (0, "[]")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("dragoman/text/a.py", "from dragoman.corpus.pairs import Pair"),
        ("dragoman/text/a.py", "def f():\n    from dragoman import model"),
        ("dragoman/text/a.py", "from ..cli import app"),
        ("dragoman/text/__init__.py", "from ..cli import app"),
        ("dragoman/text/a.py", "importlib.import_module('dragoman.model')"),
        ("dragoman/text/a.py", "from dragoman import attention"),
        ("dragoman/errors.py", "import dragoman.config"),
        ("dragoman/text/a.py", "from tests.conftest import corpus"),
        ("dragoman/tools/a.py", ""),
    ],
)
def test_a_wrong_import_is_seen(path: str, text: str) -> None:
    assert len(import_complaints({path: text})) == 1


def test_a_right_import_is_not_a_complaint() -> None:
    text = "import os\nfrom ..errors import UserError\nfrom dragoman import text, __version__"
    assert import_complaints({"dragoman/text/a.py": text, "dragoman/cli/b.py": text}) == []


def test_a_cycle_is_seen() -> None:
    first = {"dragoman/text/a.py": "from dragoman.text.b import f"}
    assert find_cycle(first | {"dragoman/text/b.py": "def f():\n    from . import a"})
    assert not find_cycle(first | {"dragoman/text/b.py": "from . import c"})


def test_outgrown_budgets_are_seen() -> None:
    long = "class A:\n    async def f(self):\n" + "        0\n" * FUNCTION_LINES
    wide = "def f({}, *rest, **more): 0".format(", ".join("abcdefg"))
    command = "@app.command()\n" + wide
    assert len(size_complaints({"a.py": long, "b.py": wide, "c.py": "0\n" * 401})) == 3
    assert len(size_complaints({"a.py": command, "dragoman/cli/a.py": command})) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "subprocess.run(line, shell=True)",
        "eval(text)",
        "numpy.load(path, allow_pickle=True)",
    ],
)
def test_a_forbidden_call_is_seen(text: str) -> None:
    assert len(call_complaints({"a.py": text})) == 1


def test_a_safe_call_is_not_a_complaint() -> None:
    assert call_complaints({"a.py": "torch.load(path, weights_only=True); model.eval()"}) == []


def test_an_unread_setting_is_seen() -> None:
    config = """
class Base(BaseModel): pass
class Sizes(Base):
    heads: int = 1
    width: int = 2
    depth: int = 3
    @property
    def head_width(self): return self.width // self.heads
"""
    other = "sizes.head_width; self.depth; sizes.depth = 4"
    assert unread_settings({"dragoman/config.py": config, "b.py": other}) == {"Sizes.depth"}
    assert unread_settings({"dragoman/config.py": config, "b.py": "s.depth"}) == {
        "Sizes.heads",
        "Sizes.width",
    }


def test_a_foreign_text_is_seen() -> None:
    places = ["home", "root", "tmp"]
    assert len(text_complaints({"a": "\n".join(f"cd /{place}/x" for place in places)})) == 3
    assert text_complaints({"a": "https://example.org/home/page\n./opt/x\n~/opt/x"}) == []
