"""The house rules, measured: lengths, names, docstrings, layers and lint ignores."""

import ast
import importlib
import inspect
import io
import re
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "hisparse"
TREES = [tree for name in ("src", "tests", "benchmarks", "tools") if (tree := ROOT / name).is_dir()]
FILES = sorted(path for tree in TREES for path in tree.rglob("*.py"))
SOURCES = [path for path in FILES if SRC in path.parents]
TESTS = [path for path in FILES if ROOT / "tests" in path.parents]
PACKAGES = sorted(path for path in SOURCES if path.name == "__init__.py")

MAX_FILE_LINES = 400
MEDIAN_FILE_LINES = 150
MAX_FUNCTION_LINES = 60
P90_FUNCTION_LINES = 30
MAX_ATTRIBUTES = 12
MAX_POSITIONAL = 3
# Interfaces that people know with four: pages, page_rows, layers, storage; and layer, rows, out, out_rows.
KNOWN_WITH_FOUR = {"HostPool.__init__", "HostPool.gather", "RowSource.gather"}
# Methods that engines call on any connector with four, by position.
CALLED_WITH_FOUR = {"build_prom_metrics"}

# Where an object gets its attributes; "" is the class body.
BIRTH = ("", "__init__", "__post_init__", "__new__")

# One word for one thing: what these name has another name here, or says nothing about what the thing is.
BANNED_NAME_PARTS = {
    "mb": "a quantity in _bytes",
    "gb": "a quantity in _bytes",
    "helper": "the noun it helps",
    "mirror": "spill",
    "ms": "a quantity in _seconds",
    "perc": "a _ratio from 0 to 1",
    "percent": "a _ratio from 0 to 1",
    "swap": "gather",
    "tmp": "what it holds",
    "util": "the noun it is about",
    "utils": "the noun it is about",
    "writeback": "spill",
}
BANNED_CLASS_ENDINGS = ("Handler", "Helper", "Manager", "Processor", "Util", "Utils")
# Names that the field already uses, and that a reader will look for.
FIELD_NAMES = {"OffloadingManager", "CPUOffloadingManager", "FilteredOffloadingManager"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of one file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def assert_none(faults: list[str]) -> None:
    """Fail with one fault a line, unless there is none."""
    if faults:
        raise AssertionError("\n".join([f"{len(faults)} faults", *faults]))


def where(path: Path, node: ast.AST) -> str:
    """Return ``file:line`` of a node, as an editor understands it."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def nodes(paths: list[Path], *kinds: type[Node]) -> Iterator[tuple[Path, Node]]:
    """Yield every node of the given kinds with its file."""
    for path in paths:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, kinds):
                yield path, node


def functions(paths: list[Path]) -> Iterator[tuple[Path, Function]]:
    """Yield every function and method with its file."""
    yield from nodes(paths, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of(node: Function) -> int:
    """Return the lines of a function from ``def`` to its last statement, docstring included."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def file_lines(path: Path) -> int:
    """Return the lines of one file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def module_name(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def own_attributes(node: ast.ClassDef) -> dict[str, set[str]]:
    """Return the attributes a class sets on itself, by the method that sets them (``""``: the class body)."""
    fields = [n.target for n in node.body if isinstance(n, ast.AnnAssign)]
    found = {"": {target.id for target in fields if isinstance(target, ast.Name)}}
    for method in node.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            found[method.name] = {
                target.attr
                for target in ast.walk(method)
                if isinstance(target, ast.Attribute)
                and isinstance(target.ctx, ast.Store)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            }
    return found


# ------------------------------------------------------------------- lengths


def test_no_file_is_long() -> None:
    """No file of any tree is longer than a reader can hold."""
    assert_none([f"{p.relative_to(ROOT)}: {n}" for p in FILES if (n := file_lines(p)) > MAX_FILE_LINES])


def test_the_median_source_file_is_short() -> None:
    """Half of the source files are within the median budget."""
    assert statistics.median(map(file_lines, SOURCES)) <= MEDIAN_FILE_LINES


def test_no_function_is_long() -> None:
    """No function outside the kernels is longer than a screen."""
    long = [
        f"{where(path, node)} {node.name}: {lines_of(node)}"
        for path, node in functions(FILES)
        if lines_of(node) > MAX_FUNCTION_LINES and SRC / "kernels" not in path.parents
    ]
    assert_none(long)


def test_most_functions_are_short() -> None:
    """Nine source functions of ten are within the budget."""
    lengths = [lines_of(node) for _, node in functions(SOURCES)]
    assert statistics.quantiles(lengths, n=10)[-1] <= P90_FUNCTION_LINES


# ------------------------------------------------------------------- objects


def test_classes_have_few_attributes() -> None:
    """No class keeps more attributes than a reader can name."""
    wide = [
        f"{where(path, node)} {node.name}: {len(names)}"
        for path, node in nodes(SOURCES, ast.ClassDef)
        if len(names := set().union(*own_attributes(node).values())) > MAX_ATTRIBUTES
    ]
    assert_none(wide)


def test_objects_are_born_complete() -> None:
    """No method outside construction adds an attribute, and none is called ``initialize``."""
    late = []
    for path, node in nodes(SOURCES, ast.ClassDef):
        if {ast.unparse(base) for base in node.bases} - {"Protocol", "Exception"}:
            continue  # attributes of a base class are declared there, perhaps in another library
        by_method = own_attributes(node)
        born = set().union(*(by_method.get(name, ()) for name in BIRTH))
        names = set().union(*by_method.values()) - born | ({"initialize"} & by_method.keys())
        late += [f"{where(path, node)} {node.name}.{name}" for name in sorted(names)]
    assert_none(late)


def named_functions(path: Path) -> Iterator[tuple[str, Function]]:
    """Yield the functions and methods of a file with their names; a nested one answers to whoever calls it."""
    for node in tree_of(path).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        yield from ((prefix + f.name, f) for f in inner if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef))


def test_long_argument_lists_are_named() -> None:
    """No function outside the compiled loops takes more than three arguments by position."""
    wide = []
    for path in SOURCES:
        loops = path.parent == SRC / "kernels" and path.name.startswith("_numba")
        # A host library fixes the signature of what it calls.
        limit = 6 if SRC / "integrations" in path.parents else MAX_POSITIONAL
        for name, node in named_functions(path):
            names = [argument.arg for argument in node.args.posonlyargs + node.args.args]
            taken = [argument for argument in names if argument not in {"self", "cls"}]
            # A compiled loop takes plain arrays and numbers, and numba has no keyword-only arguments.
            compiled = loops or any(ast.unparse(decorator) == "compiled" for decorator in node.decorator_list)
            known = name in KNOWN_WITH_FOUR or node.name in CALLED_WITH_FOUR
            if len(taken) > limit and not compiled and not known:
                wide.append(f"{where(path, node)} {name}({', '.join(taken)})")
    assert_none(wide)


def test_no_module_keeps_state() -> None:
    """No module outside the kernels rebinds its own globals."""
    assert_none([where(path, node) for path, node in nodes(SOURCES, ast.Global)])


# --------------------------------------------------------------------- words


def defined_names(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Yield the names a file defines: functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node, name
            case ast.arg(arg=name):
                yield node, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node, name


def test_names_use_the_words_of_the_house() -> None:
    """No name in the package uses a word that another word stands for."""
    found = []
    for path in SOURCES:
        for node, name in defined_names(path):
            parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
            says = [BANNED_NAME_PARTS[part] for part in parts if part in BANNED_NAME_PARTS]
            if isinstance(node, ast.ClassDef) and name.endswith(BANNED_CLASS_ENDINGS):
                # What serves requests for a library is called as the library calls it.
                known = name in FIELD_NAMES or any(ast.unparse(b).endswith("Handler") for b in node.bases)
                says += [] if known else ["what it is"]
            found += [f"{where(path, node)} {name}: say {word}" for word in says]
    assert_none(found)


# ------------------------------------------------------------- public surface


@pytest.mark.parametrize("path", PACKAGES, ids=module_name)
def test_all_lists_exactly_what_a_package_offers(path: Path) -> None:
    """``__all__`` names what the package re-exports, nothing less, and every name is there and documented."""
    module = importlib.import_module(module_name(path))
    imported = {
        alias.asname or alias.name
        for node in tree_of(path).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hisparse")
        for alias in node.names
    }
    listed = set(getattr(module, "__all__", ()))
    assert {name for name in imported if not name.startswith("_")} <= listed
    values = {name: getattr(module, name) for name in sorted(listed)}
    code = [name for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)]
    assert_none([name for name in code if not inspect.getdoc(values[name])])


def test_every_module_says_what_it_is() -> None:
    """Every file begins with a docstring."""
    assert_none([str(p.relative_to(ROOT)) for p in FILES if not ast.get_docstring(tree_of(p))])


def error_classes() -> dict[str, ast.ClassDef]:
    """Return the classes of the error module by name."""
    return {n.name: n for n in tree_of(SRC / "errors.py").body if isinstance(n, ast.ClassDef)}


def test_the_error_tree_draws_every_error() -> None:
    """The tree in the module's docstring names each error class, under its own base."""
    drawing = (ast.get_docstring(tree_of(SRC / "errors.py")) or "").split("::", 1)[1]
    base_of = {}
    path = []
    for indent, name in re.findall(r"^    ([ │├└─]*)([A-Z]\w+)", drawing, flags=re.MULTILINE):
        path = [*path[: len(indent) // 4], name]
        base_of[name] = path[-2] if len(path) > 1 else "Exception"
    assert base_of == {name: ast.unparse(node.bases[0]) for name, node in error_classes().items()}


def test_every_error_is_raised_somewhere() -> None:
    """No leaf of the error tree is a promise that no code keeps."""
    bases = {ast.unparse(base) for node in error_classes().values() for base in node.bases}
    users = [path for path in SOURCES if path.name != "errors.py"]
    raised = {ast.unparse(node.func).rsplit(".", 1)[-1] for _, node in nodes(users, ast.Call)}
    assert_none(sorted(set(error_classes()) - bases - raised))


# --------------------------------------------------------------------- tests


def test_every_test_states_a_claim() -> None:
    """Each test has a docstring of one paragraph that ends as a sentence."""
    silent = []
    for path, node in functions(TESTS):
        claim = ast.get_docstring(node) or ""
        if node.name.startswith("test_") and ("\n\n" in claim or not claim.endswith(".")):
            silent.append(f"{where(path, node)} {node.name}")
    assert_none(silent)


def test_no_test_can_be_left_out() -> None:
    """No test skips itself or expects to fail."""
    leaving = {"skip", "skipif", "xfail", "importorskip", "skipTest"}
    assert_none([where(p, n) for p, n in nodes(TESTS, ast.Attribute) if n.attr in leaving])


def test_test_files_have_names_of_their_own() -> None:
    """No two test files share a name: pytest imports them by it, and leaves out all but the first."""
    names = [path.name for path in TESTS if path.name != "conftest.py"]
    assert_none(sorted({name for name in names if names.count(name) > 1}))


def test_test_folders_mirror_the_package() -> None:
    """A folder of tests stands for the folder of the package, or of the tree, that has its name."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in TESTS}
    mirrored = {folder for folder in folders if (SRC / folder).is_dir() or (ROOT / folder).is_dir()}
    assert_none(sorted(str(folder) for folder in folders - mirrored))


# -------------------------------------------------------------- tools and lint


def test_layers_point_down_only() -> None:
    """The import contracts hold."""
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the comments of one file with their lines."""
    reader = io.StringIO(path.read_text(encoding="utf-8")).readline
    for token in tokenize.generate_tokens(reader):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_every_lint_ignore_has_a_reason() -> None:
    """A rule is switched off by its code, with the reason beside it."""
    ignore = re.compile(r"#\s*(?:ruff:\s*)?noqa(?::\s*(?P<codes>[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*))?(?P<rest>.*)")
    typed = re.compile(r"#\s*type:\s*ignore(?:\[(?P<codes>[\w, -]+)\])?(?P<rest>.*)")
    bare = []
    for path in FILES:
        for line, text in comments(path):
            for found in filter(None, (ignore.search(text), typed.search(text))):
                reason = re.sub(r"#\s*(noqa|type:).*", "", found["rest"])
                if not found["codes"] or not re.search(r"[A-Za-z]+\W+[A-Za-z]+", reason):
                    bare.append(f"{path.relative_to(ROOT)}:{line} {text}")
    assert_none(bare)


def test_every_rule_the_configuration_ignores_has_a_reason() -> None:
    """Each ignored rule in the project file is followed by why."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    rules = re.findall(r'^\s+"[A-Z]+\d*",.*$', text, flags=re.MULTILINE)
    assert len(rules) > 1
    assert_none([rule for rule in rules if not re.search(r"#\s+\S+ \S+", rule)])
