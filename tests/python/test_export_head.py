"""The model that python -m onepass.export linear_bn_softmax writes, compiled and run on the CPU.

Values, gradients and running statistics against the problem's own model in float64, bits and speed against
onepass.torch, and the judge's verdict.
"""
import copy
import inspect
import itertools
import math
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import onepass.torch  # noqa: E402
import turns  # noqa: E402
from torch import nn  # noqa: E402
from head_samples import step  # noqa: E402
from test_export import PACKAGE, ROOT, exported, load  # noqa: E402

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
TYPES = (F32, F64, F16, BF16)
EPSILON = {F32: 2.0 ** -24, F64: 2.0 ** -53, F16: 2.0 ** -11, BF16: 2.0 ** -8}  # half the spacing at 1
PROBLEM = ROOT / "problems" / "linear_bn_softmax.py"
Model = load(PROBLEM, "linear_bn_softmax_problem").Model
both_modes = pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])


@pytest.fixture(scope="session")
def model_file(tmp_path_factory):
    with exported("linear_bn_softmax", tmp_path_factory.mktemp("head")) as path:
        yield path


@pytest.fixture(scope="session")
def module(model_file):
    loaded = load(model_file, "model_new_head")
    loaded._load("cpu")
    return loaded


# ---- the model beside the problem's ----------------------------------------------------------------------------------


def pair(module, inputs, outputs, dtype=F64, device="cpu", **options):
    """(ours, theirs in float64): the same numbers, none of them at its first value."""
    ours = module.ModelNew(inputs, outputs, **options)
    with torch.no_grad():
        for name, tensor in itertools.chain(ours.named_parameters(), ours.named_buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape) * (0.3 if "gemm" in name else 1))
            if "running_var" in name:
                tensor.abs_().add_(0.2)
    ours = ours.to(device, dtype)
    return ours, in_type(ours, F64, inputs, outputs, **options)


def in_type(ours, dtype, inputs, outputs, **options):
    theirs = Model(inputs, outputs, **options).to(ours.scale.device, dtype)
    theirs.load_state_dict(ours.state_dict())
    return theirs.train(ours.training)


def sizes(theirs, x, g):
    """{name: (size, conditioned, steps)}: the norm of what is added up to a result, each number taken by itself; the
    same with each number as often as it repeats a rounding of the product; and what the result is off by if the output
    and dy, which are kept in the model's type, are each off by 1.

    Much of what is added up may cancel: rows of dz add up to 0, statistics follow the batch, one scale is for all.
    Rounding does not. And a column far from 0 beside its deviation has few digits left when its mean is taken off.
    """
    with torch.no_grad():
        y, bn, scale, weight = theirs.gemm(x), theirs.bn, theirs.scale, theirs.gemm.weight
        mean, var = (y.mean(0), y.var(0, unbiased=False)) if bn.training else (bn.running_mean, bn.running_var)
        rstd = 1 / torch.sqrt(var + bn.eps)
        xh = (y - mean) * rstd
        u = bn.weight * xh + bn.bias
        output = torch.softmax(scale * u, 1)
        slack = g.abs() + (g * output).sum(1, keepdim=True).abs()
        dz = output * slack
        slope = (scale * bn.weight * rstd).abs()
        repeated = 1 + (rstd + slope) * torch.max(y.abs().amax(0), mean.abs()) + (scale * bn.bias).abs()

        def norms(dz, output, xh, u):
            du, dy = scale * dz, slope * dz
            squares = {"output": output ** 2, "x": dy ** 2 @ weight ** 2, "gemm.weight": (dy ** 2).t() @ x ** 2,
                       "gemm.bias": dy ** 2, "bn.weight": (du * xh) ** 2, "bn.bias": du ** 2, "scale": (dz * u) ** 2}
            return {name: float(square.sum().sqrt()) for name, square in squares.items()}

        size = norms(dz, output, xh, u)
        conditioned = norms(dz * repeated, output * repeated, xh.abs() + 1, u.abs() + bn.weight.abs())
        steps = norms(slack, torch.ones_like(output), xh, u)
        steps["x"] += len(output) ** 0.5 * float(weight.norm())
        steps["gemm.weight"] += output.size(1) ** 0.5 * float(x.norm())
        return {name: (size[name], conditioned[name], steps[name]) for name in size}


def error(found, expected):
    """The norm of the difference; NaN is infinite."""
    norm = float((found.detach().double() - expected.detach().double()).norm())
    return math.inf if norm != norm else norm


def off(found, expected):
    """The error relative to the expected tensor."""
    return error(found, expected) / float(expected.detach().double().norm())


def check(ours, theirs, x, upstream):
    """A step of ours against theirs in float64: the type's rounding, and that of what is computed in between, a few
    times. A float32 model of PyTorch's may not be several times as good."""
    dtype, device = ours.scale.dtype, x.device
    single = in_type(ours, F32, ours.gemm.in_features, ours.gemm.out_features, eps=ours.bn.eps,
                     momentum=ours.bn.momentum, scale_shape=tuple(ours.scale.shape))
    measured_by = sizes(theirs, x.double(), upstream.double())
    exact = step(theirs, x.double(), upstream.double())
    rough = step(single, x.float(), upstream.float())
    found = step(ours, x, upstream)
    assert list(found) == list(exact)
    between = 32 * EPSILON[F64] if dtype is F64 else 16 * EPSILON[F32]  # PyTorch's float64 is not exact either
    for name, tensor in found.items():
        assert (tensor.shape, tensor.device) == (exact[name].shape, device), name
        assert tensor.dtype == (torch.int64 if name == "bn.num_batches_tracked" else dtype), name
        size, conditioned, steps = measured_by.get(name, (0.0, 0.0, 0.0))
        size = max(size, float(exact[name].double().norm()))
        allowed = 8 * EPSILON[dtype] * size + between * conditioned
        if tensor.is_floating_point():  # halves under 2^-14 are multiples of the smallest one, and off by half of it
            info = torch.finfo(dtype)
            allowed += 0.51 * info.tiny * info.eps * (tensor.numel() ** 0.5 + steps)
        assert error(tensor, exact[name]) <= allowed, (name, error(tensor, exact[name]), allowed)
    if dtype is F32:  # of all numbers together: one, or a few, may be good by chance
        total = [sum(error(made[name], exact[name]) / (measured_by[name][1] or 1) for name in measured_by)
                 for made in (found, rough)]
        assert total[0] <= 4 * total[1] + between, total
    if ours.bn.training:
        assert not found["gemm.bias"].any()  # adding a constant to a feature changes nothing
    assert float(exact["output"].norm()) > 0.01
    return found


SHAPES = [(2, 3, 4), (3, 1, 1), (2, 1, 300), (300, 5, 2), (65, 130, 67), (96, 256, 200)]


@both_modes
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("rows, inputs, outputs", SHAPES)
def test_values_and_gradients(module, rows, inputs, outputs, dtype, train):
    ours, theirs = pair(module, inputs, outputs, dtype)
    ours.train(train), theirs.train(train)
    check(ours, theirs, torch.randn(rows, inputs).to(dtype), torch.randn(rows, outputs).to(dtype))


@both_modes
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (7,), (1, 7)], ids=str)
def test_scale_shapes(module, shape, train):
    ours, theirs = pair(module, 5, 7, F32, scale_shape=shape)
    ours.train(train), theirs.train(train)
    check(ours, theirs, torch.randn(9, 5), torch.randn(9, 7))


HARD = ["mean is 1e2 deviations", "mean is 1e4 deviations", "gamma is 0", "constant columns", "equal rows",
        "batch of 2", "scale is 0", "scale is 1000", "large", "small"]


def make_hard(case, ours, theirs, x):
    """Both models made hard in the same way; the input, from a normal one of float64, for them."""
    if case.startswith("mean is"):
        x = 1 + x / float(case.split()[2])
    elif case == "equal rows":
        x = x[:1].expand(x.shape)
    elif case in ("large", "small"):
        x = x * (1e15 if case == "large" else 1e-15)
    with torch.no_grad():
        if case.startswith("mean is") and not ours.training:  # statistics that fit
            y = theirs.gemm(x)
            ours.bn.running_mean.copy_(y.mean(0))
            ours.bn.running_var.copy_(y.var(0))
        if case == "gamma is 0":
            ours.bn.weight.zero_()
        if case == "constant columns":
            ours.gemm.weight[::3] = 0
        if case.startswith("scale is"):
            ours.scale.fill_(float(case.split()[2]))
        if case == "large" and not ours.training:
            ours.bn.running_var.fill_(1e30)
    theirs.load_state_dict(ours.state_dict())
    return x


@both_modes
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("case", HARD)
def test_hard_inputs(module, case, dtype, train):
    ours, theirs = pair(module, 70, 90, dtype)
    ours.train(train), theirs.train(train)
    x = make_hard(case, ours, theirs, torch.randn(2 if case == "batch of 2" else 130, 70, dtype=F64))
    found = check(ours, theirs, x.to(dtype), torch.randn(x.size(0), 90, dtype=dtype))
    if case in ("gamma is 0", "scale is 0"):
        assert not found["x"].any() and not found["gemm.weight"].any()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_after_many_steps(module, dtype, momentum):
    """Fifty batches, each of another size and spread, by the side of PyTorch's float64."""
    ours, theirs = pair(module, 20, 10, dtype, momentum=momentum)
    buffers = {name: (buffer, buffer.data_ptr()) for name, buffer in ours.named_buffers()}
    for batch in range(50):
        x = ((1 + batch % 7) * torch.randn(2 + batch % 13, 20) + batch % 5).to(dtype)
        ours(x), theirs(x.double())
    assert ours.bn.num_batches_tracked.item() == theirs.bn.num_batches_tracked.item() == 50
    for name, buffer in ours.named_buffers():
        assert buffer is buffers[name][0] and buffer.data_ptr() == buffers[name][1], name
        # Each of the fifty is rounded once; a momentum of 0.1 forgets all but ten of them.
        assert off(buffer, dict(theirs.named_buffers())[name]) <= 32 * EPSILON[dtype], name


def test_momentum_0_and_1(module):
    for momentum in (0.0, 1.0):
        ours, theirs = pair(module, 6, 4, momentum=momentum)
        check(ours, theirs, torch.randn(8, 6, dtype=F64), torch.randn(8, 4, dtype=F64))


@both_modes
def test_special_values(module, train):
    """One bad row: in training it spoils its column, and so every row; in eval it spoils itself."""
    for bad in (math.inf, -math.inf, math.nan):
        ours, theirs = pair(module, 6, 4, F32)
        ours.train(train), theirs.train(train)
        x = torch.randn(9, 6)
        x[3, 2] = bad
        found, exact = ours(x), theirs(x.double())
        assert torch.equal(found.isnan(), exact.isnan()) and bool(found[3].isnan().all())
        assert bool(found[4].isnan().all()) == train


def test_training_is_learning(module):
    """A hundred steps of SGD, ours and theirs from the same numbers, at a rate at which differences do not grow."""
    ours, theirs = pair(module, 12, 5)
    x, labels = torch.randn(64, 12, dtype=F64), torch.randint(5, (64,))
    losses = {ours: [], theirs: []}
    for model in (ours, theirs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(100):
            optimizer.zero_grad()
            loss = -torch.log(model(x)[torch.arange(64), labels]).mean()
            loss.backward()
            optimizer.step()
            losses[model].append(loss.item())
    assert losses[ours][-1] < losses[ours][0]
    assert max(abs(a - b) for a, b in zip(losses[ours], losses[theirs])) < 1e-12


# ---- state -----------------------------------------------------------------------------------------------------------


def test_constructor_and_initial_state_are_the_problems(module, seed):
    assert inspect.signature(module.ModelNew) == inspect.signature(Model)
    models = []
    for kind in (module.ModelNew, Model):
        torch.manual_seed(seed)
        models.append(kind(7, 5, 1e-3, 0.2, (5,)))
        models.append(torch.rand(3))
    ours, after_ours, theirs, after_theirs = models
    assert torch.equal(after_ours, after_theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values()))
    assert (ours.bn.eps, ours.bn.momentum, ours.training) == (1e-3, 0.2, True)


def test_state_dict_both_ways(module):
    ours, theirs = pair(module, 6, 4)
    x = torch.randn(8, 6, dtype=F64)
    ours(x), ours(x)
    theirs.load_state_dict(ours.state_dict())
    back = module.ModelNew(6, 4).double()
    back.load_state_dict(theirs.state_dict())
    assert int(back.bn.num_batches_tracked) == 2
    for model in (ours, theirs, back, copy.deepcopy(ours)):
        torch.testing.assert_close(model.eval()(x), ours.eval()(x), rtol=1e-12, atol=0)


def test_batch_of_one(module):
    """PyTorch's own error, and the state that it leaves."""
    ours, theirs = pair(module, 6, 4)
    x = torch.randn(1, 6, dtype=F64)
    for model in (ours, theirs):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
            model(x)
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), theirs.buffers()))
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-12, atol=0)


@both_modes
def test_empty_batch(module, train):
    ours, theirs = pair(module, 6, 4)
    ours.train(train), theirs.train(train)
    found, exact = (step(model, torch.empty(0, 6, dtype=F64), torch.empty(0, 4, dtype=F64)) for model in (ours, theirs))
    for name in exact:
        assert found[name].shape == exact[name].shape and error(found[name], exact[name]) == 0, name


# ---- autograd and PyTorch's modes ------------------------------------------------------------------------------------


@both_modes
def test_strides(module, train):
    layouts = [lambda t: t, lambda t: t.t().contiguous().t(), lambda t: torch.stack((t, t), -1).flatten(-2)[:, ::2],
               lambda t: torch.cat((t, t), 1).view(-1, t.size(1))[::2],
               lambda t: torch.cat((t[:1, :1].flatten(), t.flatten()))[1:].view(t.shape)]
    for dtype, layout in itertools.product((F32, BF16), layouts):
        ours, theirs = pair(module, 70, 50, dtype)
        ours.train(train), theirs.train(train)
        ours.gemm.weight = nn.Parameter(layout(ours.gemm.weight.detach()))
        check(ours, theirs, layout(torch.randn(90, 70).to(dtype)), layout(torch.randn(90, 50).to(dtype)))
    ours, theirs = pair(module, 70, 50, F32)
    ours.train(train), theirs.train(train)
    check(ours, theirs, torch.randn(90, 70), torch.randn(1, 50).expand(90, 50))


def leaves(model, x):
    """x and the parameters, as arguments of a function."""
    names = [name for name, _ in model.named_parameters()]
    tensors = [x.clone().requires_grad_()] + [p.detach().clone().requires_grad_() for p in model.parameters()]

    def function(x, *parameters):
        bound = copy.deepcopy(model)
        for name, parameter in zip(names, parameters):
            *path, last = name.split(".")
            owner = getattr(bound, path[0]) if path else bound
            del owner._parameters[last]
            setattr(owner, last, parameter)
        return bound(x)

    return function, tensors


@both_modes
@pytest.mark.parametrize("scale_shape", [(1,), (4,)], ids=str)
def test_gradcheck_and_gradgradcheck(module, train, scale_shape):
    ours, _ = pair(module, 3, 4, scale_shape=scale_shape)
    function, tensors = leaves(ours.train(train), torch.randn(6, 3, dtype=F64))
    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


def test_backward_twice_and_freed(module):
    model, x = module.ModelNew(5, 3), torch.randn(7, 5, requires_grad=True)
    upstream = torch.randn(7, 3)
    once, = torch.autograd.grad(model(x), x, upstream)
    output = model(x)
    for _ in range(2):
        output.backward(upstream, retain_graph=True)
    assert torch.equal(x.grad, once + once)
    output.backward(upstream)
    with pytest.raises(RuntimeError, match="second time"):
        output.backward(upstream)


def test_changed_inputs_are_noticed(module):
    model, x = module.ModelNew(5, 3), torch.randn(7, 5)
    output = model(x)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@both_modes
@pytest.mark.parametrize("scale_shape", [(1,), ()], ids=str)
def test_autocast_gives_pytorchs_dtype(module, scale_shape, train):
    ours, theirs = pair(module, 40, 30, F32, scale_shape=scale_shape)
    chain = in_type(ours, F32, 40, 30, scale_shape=scale_shape).train(train)
    ours.train(train), theirs.train(train)
    x = torch.randn(50, 40)
    with torch.autocast("cpu", dtype=BF16):
        found, like = ours(x), chain(x)
    assert found.dtype == like.dtype
    # x and the weights are rounded to bfloat16; nothing else is, where the output is not.
    assert off(found, theirs(x.double())) <= 4 * EPSILON[BF16]
    found.sum().backward()
    assert {p.grad.dtype for p in ours.parameters()} == {F32}


@pytest.mark.parametrize("change", [
    lambda model: model.gemm.register_forward_hook(lambda module, inputs, output: output + 1e3 * inputs[0][:, :1]),
    lambda model: model.bn.register_forward_pre_hook(lambda module, inputs: (inputs[0] * torch.arange(4.0).double(),)),
    lambda model: setattr(model, "gemm", nn.Sequential(nn.Linear(6, 4), nn.Tanh()).double()),
    lambda model: setattr(model, "bn", nn.BatchNorm1d(4, affine=False).double()),
    lambda model: setattr(model.bn, "track_running_stats", False),
    lambda model: setattr(model.gemm, "bias", None)])
def test_submodules_that_do_more_are_called(module, change):
    ours, theirs = pair(module, 6, 4)
    change(ours), change(theirs)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(9, 6, dtype=F64)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=0)
    assert all(torch.allclose(a, b) for a, b in zip(ours.buffers(), theirs.buffers()))


@pytest.mark.parametrize("shape", [(6,), (2, 3, 4, 6), (5, 7), (5, 4, 6), (5, 3, 6)], ids=str)
def test_other_ranks_and_wrong_shapes(module, shape):
    """What PyTorch makes of it: with three dimensions batch normalisation has its features in the second."""
    ours, theirs = pair(module, 6, 4)
    x = torch.rand(shape, dtype=F64)
    try:
        expected = theirs(x)
    except Exception as error:
        with pytest.raises(type(error)) as found:
            ours(x)
        assert str(found.value) == str(error)
    else:
        assert shape == (5, 4, 6)
        torch.testing.assert_close(ours(x), expected, rtol=1e-12, atol=0)


def test_wrong_types_are_pytorchs_errors(module):
    ours, theirs = pair(module, 6, 4)
    for x in (torch.rand(5, 6), torch.ones(5, 6, dtype=torch.int64)):
        for model in (ours, theirs):
            with pytest.raises(RuntimeError):
                model(x)


def test_forward_mode_and_transforms(module):
    """PyTorch's own operations, whose rules they know."""
    if torch.__version__ < "2.1":
        pytest.skip("needs PyTorch 2.1")
    ours, theirs = pair(module, 6, 4)
    ours.eval(), theirs.eval()
    x, tangent, batch = (torch.rand(shape, dtype=F64) for shape in ((5, 6), (5, 6), (2, 5, 6)))
    from torch.autograd import forward_ad
    with forward_ad.dual_level():
        found, expected = (forward_ad.unpack_dual(model(forward_ad.make_dual(x, tangent))).tangent
                           for model in (ours, theirs))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.func.vmap(ours)(batch), torch.func.vmap(theirs)(batch))


def test_compile_makes_one_graph(module):
    if torch.__version__ < "2.4":
        pytest.skip("PyTorch before 2.4 breaks the graph")
    ours, _ = pair(module, 6, 4, F32)
    alone = copy.deepcopy(ours)
    x = torch.randn(9, 6)
    compiled = torch.compile(lambda x: ours(x * 2) + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), alone(x * 2) + 1)
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), alone.buffers()))


def test_compile_before_the_first_use(model_file):
    """What has yet to be built breaks the graph, and no more."""
    if not hasattr(torch, "compile"):
        pytest.skip("this PyTorch has no torch.compile")
    model, x = load(model_file, "model_new_compiled").ModelNew(6, 4).eval(), torch.randn(9, 6)
    found = torch.compile(lambda x: model(x * 2) + 1, backend="eager")(x)
    assert torch.equal(found, model(x * 2) + 1)


def test_threads_and_a_forked_child(module):
    models = [module.ModelNew(70, 50) for _ in range(4)]
    x, upstream = torch.randn(300, 70), torch.randn(300, 50)
    expected = [step(copy.deepcopy(model), x, upstream) for model in models]
    found = [None] * 4

    def work(place):
        for _ in range(5):
            found[place] = step(copy.deepcopy(models[place]), x, upstream)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, theirs in zip(found, expected):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            os.write(writer, b"same" if torch.equal(models[0](x), expected[0]["output"]) else b"other")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    assert answer == b"same"


# ---- the library's own bits and speed, and the judge -----------------------------------------------------------------


def compare_bits(module):
    """Steps of the model and of onepass.torch; the number of tensors compared."""
    compared = 0
    for dtype, train, (rows, inputs, outputs) in itertools.product(
            TYPES, (True, False), ((2, 3, 4), (4, 70, 33), (63, 129, 41), (300, 200, 270))):
        ours, _ = pair(module, inputs, outputs, dtype, scale_shape=(1,) if rows % 2 else (outputs,))
        theirs = onepass.torch.LinearBatchNormSoftmax(inputs, outputs, scale_shape=tuple(ours.scale.shape)).to(dtype)
        theirs.load_state_dict(ours.state_dict())
        ours.train(train), theirs.train(train)
        x = torch.randn(inputs, rows).to(dtype).t() if rows == 63 else torch.randn(rows, inputs).to(dtype)
        upstream = torch.randn(rows, outputs).to(dtype)
        found, expected = step(ours, x, upstream), step(theirs, x, upstream)
        with torch.no_grad():
            found["without gradients"], expected["without gradients"] = ours(x), theirs(x)
        for name in expected:
            assert torch.equal(found[name], expected[name]) and bool(torch.isfinite(found[name]).all()), name
            compared += 1
    return compared


LEVEL_RUN = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
torch.manual_seed(int(sys.argv[3]))
from test_export import load
from test_export_head import compare_bits
print(compare_bits(load(sys.argv[2])))
"""


@pytest.mark.parametrize("level", ["ref", "scalar", "avx2", "avx512", "neon"])
def test_bits_are_the_librarys(module, model_file, level, seed):
    done = subprocess.run([sys.executable, "-c", LEVEL_RUN, str(pathlib.Path(__file__).parent), str(model_file),
                           str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                          env=dict(os.environ, ONEPASS_ISA=level, PYTHONPATH=str(PACKAGE)))
    if done.returncode != 0 and ("cannot run level" in done.stderr or "is not built into" in done.stderr):
        pytest.skip("this machine or library has no level " + level)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == "352"


def test_levels_differ_in_bits(module, model_file, seed):
    """Otherwise the comparison above would say nothing about ONEPASS_ISA: the model's own plain C sums in double."""
    program = ("import sys, torch\nsys.path.insert(0, sys.argv[1])\nfrom model_new import ModelNew\n"
               "torch.manual_seed(int(sys.argv[2]))\nprint(ModelNew(200, 100)(torch.randn(50, 200)).sum(0).tolist())")
    printed = [subprocess.run([sys.executable, "-c", program, str(model_file.parent), str(seed)], check=True,
                              env=dict(os.environ, ONEPASS_ISA=level), stdout=subprocess.PIPE,
                              universal_newlines=True).stdout.splitlines()[-1] for level in ("ref", "scalar", "ref")]
    assert printed[0] == printed[2] != printed[1]


@pytest.mark.parametrize("gradient", [False, True])
def test_speed_is_the_librarys(module, gradient, capsys):
    """In turns, by the process's own time on one thread, for test machines are busy. The ratio is printed to be looked at;
    the bound is what a level that was not chosen, or a loop that was not inlined, would exceed."""
    models = {"model": module.ModelNew(2048, 2048), "library": onepass.torch.LinearBatchNormSoftmax(2048, 2048)}
    x, upstream = torch.rand(1024, 2048, requires_grad=gradient), torch.randn(1024, 2048)

    def run(model):
        with torch.set_grad_enabled(gradient):
            output = model(x)
        if gradient:
            output.backward(upstream)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ratio, model, library = turns.share(lambda: run(models["model"]), lambda: run(models["library"]), 1.25,
                                            time.process_time)
    finally:
        torch.set_num_threads(threads)
    with capsys.disabled():
        print("\n1024 x 2048 x 2048 float32, %s, one thread: library %.1f ms, exported model %.1f ms, ratio %.3f" % (
            "forward and backward" if gradient else "forward", 1e3 * library, 1e3 * model, ratio))
    assert ratio < 1.25


def test_the_judge_accepts_it(module, model_file):
    """Training and eval mode, gradients, state after several steps, hidden shapes."""
    done = subprocess.run([sys.executable, "-m", "onepass.judge", str(PROBLEM), str(model_file), "--device", "cpu",
                           "--size", "small", "--no-time"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, env=dict(os.environ, PYTHONPATH=str(PACKAGE)))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert done.stdout.splitlines()[-1].startswith("accepted")
