"""A static check that calls of a program cannot affect later calls.

A program passes if nothing that its functions can reach outlives a call: they use constants, other functions, pure
builtins and pure parts of the standard library, have constant defaults and set no attribute or global variable. Calls
of such a program give the same results in one process as in separate processes. Anything not known to be harmless fails
the check, which costs time but changes no result.
"""

import ast
import builtins
import re

MAX_TEXT = 20_000

_EXCEPTIONS = {
    name for name, held in vars(builtins).items() if isinstance(held, type) and issubclass(held, BaseException)
}
_PURE = """
    Ellipsis NotImplemented __name__ abs all any ascii bin bool bytearray bytes callable chr complex dict divmod
    enumerate filter float format frozenset hash hex int isinstance issubclass iter len list map max min next
    object oct ord pow range repr reversed round set slice sorted str sum tuple type zip
"""
_BUILTINS = _EXCEPTIONS | set(_PURE.split())
# Names that may be used of a module: nothing that caches, is random or accesses attributes by name.
_LIBRARY = """
    __future__: annotations
    bisect: bisect bisect_left bisect_right insort insort_left insort_right
    collections: ChainMap Counter OrderedDict defaultdict deque namedtuple
    copy: copy deepcopy
    datetime: date datetime time timedelta timezone
    fractions: Fraction
    functools: cmp_to_key partial reduce
    heapq: heapify heappop heappush heappushpop heapreplace merge nlargest nsmallest
    itertools: accumulate chain combinations combinations_with_replacement compress count cycle dropwhile
        filterfalse groupby islice pairwise permutations product repeat starmap takewhile tee zip_longest
    math: acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist e erf erfc exp
        exp2 expm1 fabs factorial floor fmod frexp fsum gamma gcd hypot inf isclose isfinite isinf isnan isqrt
        lcm ldexp lgamma log log10 log1p log2 modf nan perm pi pow prod radians remainder sin sinh sqrt tan tanh
        tau trunc
    operator: add and_ concat contains countOf eq floordiv ge getitem gt indexOf inv is_ is_not itemgetter le lt
        mod mul ne neg not_ or_ pos pow sub truediv truth xor
    re: A ASCII DOTALL I IGNORECASE M MULTILINE S VERBOSE X compile escape findall finditer fullmatch match
        search split sub subn
    statistics: fmean geometric_mean harmonic_mean mean median median_high median_low mode multimode pstdev
        pvariance quantiles stdev variance
    string: ascii_letters ascii_lowercase ascii_uppercase digits hexdigits octdigits printable punctuation
        whitespace
    sys: maxsize
    typing: Any Callable Collection Dict Generator Hashable Iterable Iterator List Mapping Optional Sequence Set
        Tuple Type TypeVar Union
"""
_MODULES = {
    module: frozenset(names.split())
    for module, names in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", _LIBRARY, re.MULTILINE)
}
_FRAMES = {"gi_frame", "cr_frame", "ag_frame", "tb_frame"}  # public attributes that give access to frames
_LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.Lambda)
_IMPORTS = (ast.Import, ast.ImportFrom)
_PLAIN = {  # nodes that are harmless if their children are
    ast.Module, ast.Expression, ast.Return, ast.Delete, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While,
    ast.If, ast.Raise, ast.Try, ast.Assert, ast.Expr, ast.Pass, ast.Break, ast.Continue, ast.BoolOp, ast.BinOp,
    ast.UnaryOp, ast.IfExp, ast.Dict, ast.Set, ast.Yield, ast.YieldFrom, ast.Compare, ast.Call, ast.FormattedValue,
    ast.JoinedStr, ast.Constant, ast.Subscript, ast.Starred, ast.List, ast.Tuple, ast.Slice, ast.comprehension,
    ast.ExceptHandler, ast.keyword, ast.Nonlocal,
}  # fmt: skip
for _kind in (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop):
    _PLAIN.update(_kind.__subclasses__())


class _Stateful(Exception):
    pass


def is_stateless(program: str, calls: list[str], name: str) -> bool:
    """Check whether calls of a program, loaded as module `name`, can share one process."""
    if len(program) > MAX_TEXT or sum(map(len, calls)) > MAX_TEXT:
        return False
    try:
        check = _Check(ast.parse(program), name)
        for call in calls:
            check.expression(ast.parse(call, mode="eval"))
    except (_Stateful, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


class _Check:
    """A visitor that raises `_Stateful` at code that may keep state.

    `scopes` are the names bound in the functions around a node.
    """

    def __init__(self, module, name):
        self.name = name
        self.modules: dict[str, str] = {}
        self.harmless: set[str] = set()
        self.others: set[str] = set()
        self.imported_inside: set[str] = set()
        body = [part for statement in module.body for part in self._live(statement)]
        kinds = set()
        for node in (node for statement in body for node in ast.walk(statement)):
            kinds.add(type(node))
            if isinstance(node, _IMPORTS):  # also in functions: the name means the same everywhere
                self._import(node)
                if node not in body:
                    self.imported_inside |= {alias.asname or alias.name for alias in node.names}
        if ast.Try in kinds and kinds & {ast.Yield, ast.YieldFrom}:
            raise _Stateful  # an abandoned generator may run its `finally` block at any time
        for statement in body:
            self._bind(statement)
        self.others |= self.harmless & self.modules.keys()
        for statement in body:
            self._visit(statement, ())

    def expression(self, tree):
        """Check a call, which may use the same names as a function."""
        self._visit(tree, (set(),))

    def _live(self, statement):
        """Return the statements that run; the `__main__` block does not run under another name."""
        if self.name != "__main__" and isinstance(statement, ast.If) and _is_main(statement.test):
            return statement.orelse
        return [statement]

    # Names of the module

    def _bind(self, statement):
        if isinstance(statement, ast.FunctionDef):
            self._named(statement.name, self.harmless)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            lasting = isinstance(statement.value, ast.Lambda) or _is_constant(statement.value)
            for name in _bound([statement]):
                self._named(name, self.harmless if lasting else self.others)
        else:
            for name in _bound([statement]):
                self._named(name, self.others)

    def _named(self, name, kind):
        if name.startswith("__"):
            raise _Stateful
        kind.add(name)

    def _import(self, statement):
        for alias in statement.names:
            module = statement.module if isinstance(statement, ast.ImportFrom) else alias.name
            if module not in _MODULES or getattr(statement, "level", 0):
                raise _Stateful
            if isinstance(statement, ast.Import):
                name = alias.asname or alias.name
                if self.modules.setdefault(name, module) != module:  # pyright: ignore[reportArgumentType]  in _MODULES
                    raise _Stateful
            elif alias.name == "*":
                self.harmless |= _MODULES[module]
            elif alias.name in _MODULES[module]:
                self._named(alias.asname or alias.name, self.harmless)
            else:
                raise _Stateful

    # Nodes

    def _visit(self, node, scopes):
        if isinstance(node, ast.Name):
            self._use(node, scopes)
        elif isinstance(node, ast.Attribute):
            self._attribute(node, scopes)
        elif isinstance(node, _FUNCTIONS):
            self._function(node, scopes)
        elif isinstance(node, _LOOPS):
            inner = (*scopes, _bound(generator.target for generator in node.generators))
            self._visit(node.generators[0].iter, scopes)
            for part in ast.iter_child_nodes(node):
                self._visit(part, inner)
        elif type(node) in _PLAIN:
            for part in ast.iter_child_nodes(node):
                self._visit(part, scopes)
        elif not isinstance(node, _IMPORTS):
            raise _Stateful

    def _use(self, node, scopes):
        name = node.id
        if any(name in scope for scope in scopes):
            return
        if not isinstance(node.ctx, ast.Load) or name in self.others:
            if scopes:
                raise _Stateful
        elif name in self.modules:
            raise _Stateful  # a module as a value
        elif name not in self.harmless and name not in _BUILTINS and (scopes or name != "print"):
            raise _Stateful

    def _attribute(self, node, scopes):
        if not isinstance(node.ctx, ast.Load) or node.attr.startswith("_") or node.attr in _FRAMES:
            raise _Stateful
        base = node.value
        if isinstance(base, ast.Name) and base.id in self.modules and not any(base.id in scope for scope in scopes):
            if base.id in self.others or node.attr not in _MODULES[self.modules[base.id]]:
                raise _Stateful
        else:
            self._visit(base, scopes)

    def _function(self, node, scopes):
        given = node.args
        for default in (*given.defaults, *given.kw_defaults):
            if default is not None and not _is_constant(default):
                raise _Stateful
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
        for argument in arguments:
            if argument.annotation is not None:
                self._visit(argument.annotation, scopes)
        body = node.body if isinstance(node, ast.FunctionDef) else [node.body]
        if isinstance(node, ast.FunctionDef):
            if node.decorator_list or getattr(node, "type_params", None):
                raise _Stateful
            if node.returns is not None:
                self._visit(node.returns, scopes)
        bound = {argument.arg for argument in arguments} | _bound(body)
        if bound & self.imported_inside:  # the name may be a module
            raise _Stateful
        inner = (*scopes, bound)
        for part in body:
            self._visit(part, inner)


def _is_main(test):
    return ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _bound(nodes):
    """Return the names that statements bind in their scope, excluding nested functions and comprehensions."""
    found, todo = set(), list(nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                found.add(node.id)
        elif not isinstance(node, (*_LOOPS, ast.Lambda)):
            if isinstance(node, ast.ExceptHandler) and node.name:
                found.add(node.name)
            todo += ast.iter_child_nodes(node)
    return found


def _is_constant(node):
    """Check whether a value consists of literals only and is immutable."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Tuple):
        return all(map(_is_constant, node.elts))
    if isinstance(node, ast.UnaryOp):
        return _is_constant(node.operand)
    return isinstance(node, ast.BinOp) and _is_constant(node.left) and _is_constant(node.right)
