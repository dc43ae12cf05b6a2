"""Python libraries and pytest targets, one per device family, built from `rule()` alone.

Neither the native Python rules nor any external repository is used, so the same file loads in Bazel 4 to 7,
offline. Tests run with the interpreter named by COCKTAIL_PYTHON, which must have jax and pytest installed.
"""

CocktailInfo = provider(fields = {"files": "depset of sources and data, transitive"})

# How jax calls the device family of a target. Those of AMD's GPUs compile and emulate programs on the host.
_TARGETS = ["cpu", "cuda", "rocm"]
_PLATFORMS = {"cpu": "cpu", "cuda": "cuda", "rocm": "cpu"}
_ARGUMENTS = {"rocm": ["-m", "rocm"]}

def _transitive(ctx):
    return depset(
        ctx.files.srcs + ctx.files.data,
        transitive = [dependency[CocktailInfo].files for dependency in ctx.attr.deps],
    )

def _library_impl(ctx):
    files = _transitive(ctx)
    return [
        CocktailInfo(files = files),
        DefaultInfo(files = files, runfiles = ctx.runfiles(transitive_files = files)),
    ]

_FILES = {
    "srcs": attr.label_list(allow_files = True),
    "data": attr.label_list(allow_files = True),
    "deps": attr.label_list(providers = [CocktailInfo]),
}

cocktail_library = rule(implementation = _library_impl, attrs = _FILES)

_LAUNCHER = """#!/bin/sh
cd "$TEST_SRCDIR/$TEST_WORKSPACE" || exit 3
export JAX_PLATFORMS={platform} PYTHONDONTWRITEBYTECODE=1 {variables}
export PYTHONPATH="$PWD${{PYTHONPATH:+:$PYTHONPATH}}"
export HOME="${{HOME:-$TEST_TMPDIR}}"
set -- {sources} "$@"
[ -z "$TESTBRIDGE_TEST_ONLY" ] || set -- -k "$TESTBRIDGE_TEST_ONLY" "$@"
[ -z "$XML_OUTPUT_FILE" ] || set -- "--junitxml=$XML_OUTPUT_FILE" "$@"
exec "${{COCKTAIL_PYTHON:-python3}}" -m pytest -q -p no:cacheprovider "--basetemp=$TEST_TMPDIR/pytest" "$@"
"""

def _test_impl(ctx):
    launcher = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.write(
        launcher,
        _LAUNCHER.format(
            platform = _PLATFORMS[ctx.attr.platform],
            variables = "JAX_COCKTAIL_TEST_ALL=1" if ctx.attr.every_case else "",
            sources = " ".join([source.short_path for source in ctx.files.srcs]),
        ),
        is_executable = True,
    )
    return [DefaultInfo(executable = launcher, runfiles = ctx.runfiles(transitive_files = _transitive(ctx)))]

_pytest_test = rule(
    implementation = _test_impl,
    test = True,
    attrs = dict(_FILES, platform = attr.string(values = _TARGETS), every_case = attr.bool()),
)

def cocktail_test(name, srcs, targets = ["cpu"], tags = [], **kwargs):
    """One target per device family: NAME_cpu, NAME_cuda, NAME_rocm.

    Those for NVIDIA's GPUs carry the tags `gpu`, `cuda`, `exclusive` and `manual`: a wildcard leaves them out,
    and on a machine with the device they are asked for by name or through the folder's suite. Those for AMD's
    GPUs need no device. They run the tests marked `rocm` and are `manual`, since NAME_cpu runs these as well.
    """
    for target in targets:
        tags_of = {"cpu": [], "cuda": ["gpu", "cuda", "exclusive", "manual"], "rocm": ["rocm", "manual"]}
        _pytest_test(
            name = name + "_" + target,
            srcs = srcs,
            platform = target,
            tags = tags + tags_of[target],
            args = kwargs.get("args", []) + _ARGUMENTS.get(target, []),
            **{key: value for key, value in kwargs.items() if key != "args"}
        )

def cocktail_test_folder(targets = ["cpu"], rocm = [], long = [], data = [], deps = ["//jax_cocktail"]):
    """Every test_*.py of the calling package as tests of its own; all else in it is shared by them.

    `rocm`: the files among them with tests marked `rocm`, without test_ and .py.
    `long`: those of whose cases a usual run leaves some out. NAME_long runs all of them, and the suite `long` every
    NAME_long.

    `collect_cpu` imports all of them and runs none: what they import is there for Bazel.
    """
    cocktail_library(
        name = "support",
        srcs = native.glob(["**"], exclude = ["test_*.py", "BUILD.bazel", "**/__pycache__/**"]),
        data = data,
        deps = deps + ["//tests:shared"],
        visibility = ["//tests:__subpackages__"],
    )
    cocktail_test(
        name = "collect",
        srcs = native.glob(["test_*.py"]),
        args = ["--collect-only"],
        deps = [":support"],
        size = "medium",
    )
    for source in native.glob(["test_*.py"]):
        cocktail_test(
            name = source[:-len(".py")],
            srcs = [source],
            targets = targets + (["rocm"] if source[len("test_"):-len(".py")] in rocm else []),
            deps = [":support"],
            size = "medium",
            timeout = "long",
        )
    for target in targets:
        native.test_suite(
            name = target,
            tags = [] if target == "cpu" else ["manual"],
            tests = [source[:-len(".py")] + "_" + target for source in native.glob(["test_*.py"])],
        )
    if rocm:
        native.test_suite(name = "rocm", tags = ["manual"], tests = ["test_" + name + "_rocm" for name in rocm])
    for name in long:
        _pytest_test(
            name = "test_" + name + "_long",
            srcs = ["test_" + name + ".py"],
            platform = "cpu",
            every_case = True,
            deps = [":support"],
            size = "enormous",
            tags = ["long", "manual"],
        )
    if long:
        native.test_suite(name = "long", tags = ["manual"], tests = ["test_" + name + "_long" for name in long])
