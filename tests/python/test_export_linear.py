"""The losses from hidden states and of top-k teachers that python -m onepass.export writes, compiled and run on the
CPU: against float64 PyTorch, bit by bit against the package under test, and before the judge."""

import pathlib
import subprocess
import sys

import pytest

import losses_samples
import torch_samples as samples
from torch_samples import F, VERSION, torch

from onepass.judge.__main__ import main
from onepass.torch import kl_div_top_k, losses_modules
from test_export import ROOT, load
from test_export_losses import exported_quickly

OPERATORS = "linear_cross_entropy", "kl_top_k"
TYPES = [torch.float64, torch.float32, torch.bfloat16] + ([torch.float16] if VERSION >= (2, 2) else [])
WIDTH, CLASSES, K = 12, 30, 5

# Where there is no onepass, from strings without a file: the losses of two equal logits.
ALONE = """
import sys
sys.modules["onepass"] = None
import torch
contexts = []
for path in sys.argv[1:]:
    contexts.append({})
    with open(path) as file:
        exec(compile(file.read(), "<string>", "exec"), contexts[-1])
linear, top_k = (context["ModelNew"] for context in contexts)
print(linear(3, 2)(torch.zeros(4, 3), torch.tensor([0, 1, 1, -100])).item())
print(top_k()(torch.zeros(4, 2), torch.full((4, 1), 0.25).log(), torch.ones(4, 1, dtype=torch.int64)).item())
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    with exported_quickly(tmp_path_factory.mktemp("linear"), OPERATORS) as made:
        yield made


@pytest.fixture(scope="module")
def modules(files):
    return {operator: load(path, "exported_" + operator) for operator, path in files.items()}


def test_alone(files):
    done = subprocess.run([sys.executable, "-c", ALONE, *(str(files[operator]) for operator in OPERATORS)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, cwd="/")
    assert done.returncode == 0, done.stderr[-3000:]
    nll, kl = map(float, done.stdout.split()[-2:])
    # log 2; and 1/4 log(1/2) + 3/4 log(3/2).
    assert abs(nll - 0.6931471806) < 1e-6 and abs(kl - 0.1308120352) < 1e-6


def model_of(modules, operator, dtype):
    if operator == "kl_top_k":
        return modules[operator].ModelNew()
    torch.manual_seed(5)
    return modules[operator].ModelNew(WIDTH, CLASSES).to(dtype)


def draw(operator, rows, dtype):
    generator = samples.random("%s %d %s" % (operator, rows, dtype))
    if operator == "linear_cross_entropy":
        labels = losses_samples.labels(generator, (rows,), CLASSES)
        labels[0] = 0
        return losses_samples.logits(generator, (rows, WIDTH), dtype), labels
    teacher = F.log_softmax(losses_samples.logits(generator, (rows, CLASSES)), -1)
    values, classes = (teacher + losses_samples.logits(generator, (rows, CLASSES), scale=1e-6)).topk(K)
    return losses_samples.logits(generator, (rows, CLASSES), dtype), values.to(dtype), classes


def reference(operator, model):
    """The same in PyTorch's operations."""
    if operator == "linear_cross_entropy":
        return lambda hidden, labels: F.cross_entropy(F.linear(hidden, model.head.weight.to(hidden.dtype)), labels)

    def divergence(student, log_probs, classes):
        log_s, t = F.log_softmax(student, -1), log_probs.exp()
        named = torch.zeros_like(log_s).scatter(-1, classes, 1.0) > 0
        rest, t_rest = log_s.masked_fill(named, float("-inf")).logsumexp(-1), 1 - t.sum(-1)
        inside = (t * (log_probs - log_s.gather(-1, classes))).sum(-1)
        return (inside + t_rest * (t_rest.log() - rest)).mean()
    return divergence


def package(operator, model):
    if operator == "linear_cross_entropy":
        return lambda hidden, labels: losses_modules.linear_cross_entropy_of(hidden, model.head, labels)
    return lambda student, *teacher: kl_div_top_k(student, *teacher, reduction="valid").to(student.dtype)


def step(function, inputs, parameters, upstream=1.7):
    first = samples.leaf(inputs[0])
    value = function(first, *inputs[1:])
    return [value.detach()] + list(torch.autograd.grad(value * upstream, [first] + parameters))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("operator", OPERATORS)
def test_values_gradients_and_bits(modules, operator, dtype):
    model = model_of(modules, operator, dtype)
    parameters = list(model.parameters())
    for rows in (1, 6, 300):
        inputs = draw(operator, rows, dtype)
        doubles = [each.double() if each.is_floating_point() else each for each in inputs]
        found = step(model, inputs, parameters)
        exact = step(reference(operator, model), doubles, parameters)
        for a, b, c in zip(found, exact, step(package(operator, model), inputs, parameters)):
            assert a.dtype is dtype and torch.equal(a, c)
            losses_samples.assert_near(a, b, dtype)


def test_state_and_initial_values_are_pytorchs(modules):
    model = model_of(modules, "linear_cross_entropy", torch.float32)
    torch.manual_seed(5)
    layer = torch.nn.Linear(WIDTH, CLASSES, bias=False)
    assert list(model.state_dict()) == ["head.weight"] and torch.equal(model.head.weight, layer.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_gives_pytorchs_type(modules, dtype):
    model = model_of(modules, "linear_cross_entropy", dtype)
    hidden, labels = draw("linear_cross_entropy", 4, dtype)
    with torch.autocast("cpu"):
        found, expected = model(hidden, labels), F.cross_entropy(model.head(hidden), labels)
        top_k = modules["kl_top_k"].ModelNew()(*draw("kl_top_k", 4, dtype))
    assert found.dtype is expected.dtype and top_k.dtype is torch.float32
    losses_samples.assert_near(found, expected.float(), torch.bfloat16, steps=2 ** 18)  # logits of bfloat16


def test_a_layer_with_hooks_is_called(modules):
    model = model_of(modules, "linear_cross_entropy", torch.float64)
    hidden, labels = draw("linear_cross_entropy", 6, torch.float64)
    plain, seen = model(hidden, labels), []
    hook = model.head.register_forward_hook(lambda module, inputs, output: seen.append(len(output)) or 2 * output)
    losses_samples.assert_near(model(hidden, labels), F.cross_entropy(2 * F.linear(hidden, model.head.weight), labels))
    hook.remove()
    assert seen == [6] and torch.equal(model(hidden, labels), plain) and seen == [6]
    model.head = torch.nn.Sequential(model.head)
    losses_samples.assert_near(model(hidden, labels), plain)


def test_refusals_are_pytorchs(modules):
    model = model_of(modules, "linear_cross_entropy", torch.float32)
    with pytest.raises(IndexError, match="out of bounds"):
        model(torch.zeros(2, WIDTH), torch.tensor([0, CLASSES]))
    with pytest.raises(RuntimeError):
        model(torch.zeros(2, WIDTH + 1), torch.tensor([0, 0]))
    with pytest.raises((RuntimeError, ValueError)):
        model(torch.zeros(2, WIDTH), torch.tensor([0]))


@samples.needs_compile
@pytest.mark.parametrize("operator", OPERATORS)
def test_compile_makes_one_graph(modules, operator):
    import torch._dynamo
    torch._dynamo.reset()
    model, inputs = model_of(modules, operator, torch.float64), draw(operator, 6, torch.float64)
    model(*inputs)  # compiles the sources
    function, parameters = torch.compile(model, fullgraph=True, backend="aot_eager"), list(model.parameters())
    for a, b in zip(step(function, inputs, parameters), step(reference(operator, model), inputs, parameters)):
        losses_samples.assert_near(a, b)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_judge_accepts_it(files, operator, nursery, capsys):
    code = main([str(pathlib.Path(ROOT) / "problems" / (operator + ".py")), str(files[operator]), "--device", "cpu",
                 "--size", "small", "--no-time"], nursery)
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert printed.rstrip("\n").splitlines()[-1].startswith("accepted: "), printed
