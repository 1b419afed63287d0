"""The losses from logits that python -m onepass.export writes, compiled and run on the CPU: against float64 PyTorch,
bit by bit against the package under test, and before the judge."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import losses_samples
import torch_samples as samples
from torch_samples import F, VERSION, torch

from onepass import export
from onepass.judge.__main__ import main
from onepass.torch import rewrite_losses
from test_export import ROOT, load

T = 2.0
OPERATORS = ("kl_logits", "cross_entropy")
TYPES = [torch.float64, torch.float32, torch.bfloat16] + ([torch.float16] if VERSION >= (2, 2) else [])

# Where there is no onepass, from a string without a file.
ALONE = """
import sys
sys.modules["onepass"] = None
import torch
for path, words, second in ((sys.argv[1], (2.0,), torch.tensor([[0.0, 1.0]])), (sys.argv[2], (), torch.tensor([1]))):
    context = {}
    with open(path) as file:
        exec(compile(file.read(), "<string>", "exec"), context)
    print(context["ModelNew"](*words)(torch.tensor([[1.0, 0.0]]), second).item())
    print(context["_loaded"]["cpu"].__file__)
"""


@contextlib.contextmanager
def exported_quickly(directory, operators):
    """{operator: file}, compiled without optimisation, which takes a third of the time and changes no bits."""
    compiler = directory / "cc"
    compiler.write_text("#!/bin/sh\nfor word do shift; [ \"$word\" = -O3 ] && word=-O0; set -- \"$@\" \"$word\"; done\n"
                        "exec %s \"$@\"\n" % (os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc")))))
    compiler.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", str(compiler))
        patch.setenv("TORCH_EXTENSIONS_DIR", str(directory / "extensions"))
        made = {}
        for operator in operators:
            made[operator] = directory / (operator + ".py")
            made[operator].write_text(export.export(operator), encoding="utf-8")
        yield made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    with exported_quickly(tmp_path_factory.mktemp("losses"), OPERATORS) as made:
        yield made


@pytest.fixture(scope="module")
def models(files):
    modules = {operator: load(path, "exported_" + operator) for operator, path in files.items()}
    return {"kl_logits": modules["kl_logits"].ModelNew(T), "cross_entropy": modules["cross_entropy"].ModelNew()}


def test_alone_and_compiled_once(files):
    done = subprocess.run([sys.executable, "-c", ALONE, *map(str, files.values())], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True, cwd="/")
    assert done.returncode == 0, done.stderr[-3000:]
    kl, first, nll, second = done.stdout.split()[-4:]
    # T = softmax(0, 1/2), S = softmax(1/2, 0): KL = (t1 - t0) / 2; and log(1 + e).
    assert abs(float(kl) - 4 * 0.5 * 0.2449186624) < 1e-6 and abs(float(nll) - 1.3132616875) < 1e-6
    assert first == second and first.startswith(str(files["kl_logits"].parent / "extensions"))
    assert len([path for path in (files["kl_logits"].parent / "extensions").iterdir()]) == 1


def reference(operator, first, second):
    if operator == "cross_entropy":
        return F.cross_entropy(first, second)
    return F.kl_div(F.log_softmax(first / T, -1), F.log_softmax(second / T, -1), reduction="batchmean",
                    log_target=True) * T**2


def draw(operator, shape, dtype):
    generator = samples.random("%s %s %s" % (operator, shape, dtype))
    first = losses_samples.logits(generator, shape, dtype)
    if operator == "kl_logits":
        return first, losses_samples.logits(generator, shape, dtype)
    labels = torch.randint(0, shape[1], shape[:1] + shape[2:], generator=generator)
    labels.view(-1)[0] = -100
    labels.view(-1)[-1] = 0
    return first, labels


def step(function, inputs, upstream=1.7):
    leaves = [samples.leaf(each) if each.is_floating_point() else each for each in inputs]
    value = function(*leaves)
    return [value.detach()] + list(torch.autograd.grad(value * upstream, [x for x in leaves if x.requires_grad]))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(6, 50), (3, 5, 7), (2, 9, 4, 3)], ids=str)
@pytest.mark.parametrize("operator", OPERATORS)
def test_values_gradients_and_bits(models, operator, shape, dtype):
    inputs = draw(operator, shape, dtype)
    exact = step(lambda *tensors: reference(operator, *tensors),
                 [each.double() if each.is_floating_point() else each for each in inputs])
    found = step(models[operator], inputs)
    of_logits = -1, None, T
    package = {"cross_entropy": rewrite_losses.cross_entropy, "kl_logits": lambda s, t: (
        rewrite_losses.kl_div_of_softmax(s, t, of_logits, of_logits, "batchmean", True, False) * T**2)}[operator]
    for a, b, c in zip(found, exact, step(package, inputs)):
        assert a.dtype is dtype and torch.equal(a, c)
        losses_samples.assert_near(a, b, dtype)


@pytest.mark.parametrize("operator", OPERATORS)
def test_autocast_gives_pytorchs_type(models, operator):
    inputs = draw(operator, (4, 9), torch.bfloat16)
    with torch.autocast("cpu"):
        found, expected = models[operator](*inputs), reference(operator, *inputs)
    assert found.dtype is expected.dtype and bool(torch.isfinite(found))


def test_refusals_are_pytorchs(models):
    with pytest.raises(IndexError, match="out of bounds"):
        models["cross_entropy"](torch.zeros(2, 3), torch.tensor([0, 3]))
    with pytest.raises(RuntimeError):
        models["kl_logits"](torch.zeros(2, 3), torch.zeros(2, 4))


@samples.needs_compile
@pytest.mark.parametrize("operator", OPERATORS)
def test_compile_makes_one_graph(models, operator):
    import torch._dynamo
    torch._dynamo.reset()
    inputs = draw(operator, (6, 11), torch.float64)
    models[operator](*inputs)  # compiles the sources
    function = torch.compile(models[operator], fullgraph=True, backend="aot_eager")
    for a, b in zip(step(function, inputs), step(lambda *tensors: reference(operator, *tensors), inputs)):
        losses_samples.assert_near(a, b)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_judge_accepts_it(files, operator, nursery, capsys):
    code = main([str(pathlib.Path(ROOT) / "problems" / (operator + ".py")), str(files[operator]), "--device", "cpu",
                 "--size", "small", "--no-time"], nursery)
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert printed.rstrip("\n").splitlines()[-1].startswith("accepted: "), printed
