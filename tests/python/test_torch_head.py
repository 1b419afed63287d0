"""onepass.torch.LinearBatchNormSoftmax and linear_batch_norm_softmax beside the chain of PyTorch's modules: outputs,
gradients, running statistics, every option, train and eval. In float64 they agree to rounding; in other types errors
are against float64, and PyTorch's own is the limit."""

import copy
import gc
import inspect
import io
import math
import os
import pickle
import threading
import weakref

import pytest

import torch_samples as samples
from head_samples import calls  # noqa: F401: a fixture
from head_samples import CLOSE, Chain, Rounded, check, draw, draw_step, functional, leaves, models, off, step
from torch_samples import F, VERSION, torch

from onepass import _native
from onepass.torch import LinearBatchNormSoftmax, linear_batch_norm_softmax

nn = torch.nn
HALF = (torch.float16, torch.bfloat16)


def sizes(model, x, upstream, dtype):
    """{name: how large the gradient would be if nothing in it cancelled}: what one rounding of each output moves it by.

    y is rounded, and y (g - sum y g) with it, by up to y (|g| + sum y |g|) roundings: where y is nearly one-hot that is
    far above the gradient itself. What is below the type's normal numbers is rounded as if it were one of them. From
    there every sum has terms of either sign, which add up as squares; the gradient of the normalisation lengthens no
    column."""
    with torch.no_grad():
        bn, h = model.bn, model.gemm(x)
        mean, var = (h.mean(0), h.var(0, unbiased=False)) if model.training else (bn.running_mean, bn.running_var)
        slope = (var + bn.eps).rsqrt()
        normalised = (h - mean) * slope
        after = normalised * bn.weight + bn.bias
        tiny, g = torch.finfo(dtype).tiny, upstream.abs()
        y = torch.softmax(model.scale * after, 1).clamp_min(tiny)
        terms = y * (g + (y * g).sum(1, keepdim=True))
        inner = (terms * model.scale * bn.weight * slope).abs().clamp_min(tiny)
        made = {"scale": terms * after, "bn.bias": terms * model.scale, "bn.weight": terms * model.scale * normalised,
                "x": inner * model.gemm.weight.norm(dim=1), "gemm.weight": inner * x.norm(dim=1, keepdim=True)}
    return {name: float(tensor.norm()) for name, tensor in made.items()}


# ---- state -----------------------------------------------------------------------------------------------------------


def test_signatures():
    names = "in_features out_features bn_eps bn_momentum scale_shape bias affine track_running_stats device dtype"
    assert list(inspect.signature(LinearBatchNormSoftmax).parameters) == names.split() + ["exact_fp32"]
    names = "input weight bias running_mean running_var gamma beta scale training momentum eps num_batches_tracked"
    assert list(inspect.signature(linear_batch_norm_softmax).parameters) == names.split() + ["exact_fp32", "prepared",
                                                                                                   "process_group"]


def test_same_seed_same_state(seed):
    torch.manual_seed(seed)
    theirs, after = Chain(7, 5, scale_shape=(5,)), torch.rand(3)
    torch.manual_seed(seed)
    ours, after_ours = LinearBatchNormSoftmax(7, 5, scale_shape=(5,)), torch.rand(3)
    assert torch.equal(after, after_ours)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"affine": False}, {"track_running_stats": False}], ids=str)
def test_state_dict_both_ways(options):
    ours, theirs = models(samples.random("state"), 6, 4, **options)
    ours(torch.rand(5, 6, dtype=torch.float64))
    theirs.load_state_dict(ours.state_dict())
    x = torch.rand(5, 6, dtype=torch.float64)
    assert off(ours(x), theirs(x)) <= CLOSE


# ---- beside PyTorch --------------------------------------------------------------------------------------------------

OPTIONS = [{}, {"bias": False}, {"affine": False}, {"bias": False, "affine": False}, {"track_running_stats": False},
           {"bn_momentum": None}, {"bn_momentum": 0.0}, {"bn_momentum": 1.0}, {"bn_momentum": -0.5}, {"bn_eps": 0.3},
           {"scale_shape": ()}, {"scale_shape": (9,)}, {"scale_shape": (1, 9)}, {"scale_shape": (1, 1)}]


def test_shapes_of_a_scale(calls):  # noqa: F811
    """The library gets those that broadcast as one number or one per feature; PyTorch's operations get the others."""
    x, weight, state = torch.rand(4, 3), torch.rand(5, 3), (torch.rand(5), torch.rand(5) + 0.5)
    served = (), (1,), (5,), (1, 1), (1, 5)
    for shape in served + ((4, 1), (4, 5), (1, 1, 1), (1, 1, 5), (0,), (2,), (5, 1)):
        del calls[:]
        scale = torch.rand(shape)
        arguments = x, weight, None, *state, None, None, scale, False, 0.1, 1e-5
        try:
            expected = torch.softmax(scale * F.batch_norm(F.linear(x, weight), *state), 1)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                linear_batch_norm_softmax(*arguments)
        else:
            found = linear_batch_norm_softmax(*arguments)
            assert found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=0)
        assert bool(calls) == (shape in served), shape


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(options, train, calls):
    """Three steps with each option."""
    generator = samples.random("options %s %s" % (options, train))
    ours, theirs = models(generator, 13, 9, **options)
    ours.train(train), theirs.train(train)
    for _ in range(3):
        x, upstream = draw_step(generator, theirs, 12)
        check(step(ours, x, upstream), step(theirs, x, upstream), train or "track_running_stats" in options)
    assert [name for name, _ in calls] == ["head", "head_backward"] * 3


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("rows,inputs,outputs", [(2, 3, 4), (3, 1, 1), (2, 1, 300), (300, 5, 2), (65, 130, 67)])
def test_shapes(rows, inputs, outputs, train, calls):
    generator = samples.random("shapes %d %d %d" % (rows, inputs, outputs))
    ours, theirs = models(generator, inputs, outputs)
    ours.train(train), theirs.train(train)
    if rows < 4:  # little or nothing is left of some gradients
        x, upstream = draw(generator, rows, inputs), draw(generator, rows, outputs)
    else:
        x, upstream = draw_step(generator, theirs, rows)
    found, expected = step(ours, x, upstream), step(theirs, x, upstream)
    if outputs == 1:  # softmax of one feature is 1, and its gradients are 0
        assert torch.equal(found["output"], torch.ones(rows, 1, dtype=torch.float64))
        assert not any(found[name].any() for name in ("x", "gemm.weight", "bn.weight", "bn.bias", "scale"))
        found = {name: found[name] for name, _ in ours.named_buffers()}
        expected = {name: expected[name] for name in found}
    # Two rows are their mean -/+ their deviation: with eps their normalised values hardly depend on the input, and the
    # gradients to it are what cancellation leaves.
    check(found, expected, train, 1e-7 if rows < 4 else CLOSE)
    assert len(calls) == 2


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_nearly_one_hot_outputs(train):
    """Little is left of what is added up, and errors are those of what is added up (docs/numerics.md, Errors)."""
    generator = samples.random("one-hot %s" % train)
    ours, theirs = models(generator, 13, 9)
    with torch.no_grad():
        theirs.scale.mul_(30)
    ours.load_state_dict(theirs.state_dict())
    ours.train(train), theirs.train(train)
    x, upstream = draw(generator, 12, 13), draw(generator, 12, 9)
    size = sizes(theirs, x, upstream, torch.float64)
    found, expected = step(ours, x, upstream), step(theirs, x, upstream)
    assert off(found["output"], expected["output"]) <= CLOSE
    for name in size:
        assert off(found[name], expected[name], size[name]) <= CLOSE / 20, name


def errors_beside_pytorch(name, dtype, train, rows, inputs, outputs, device="cpu"):
    """{result: (our error, the chain's)} against float64, geometric means over several draws: where softmax is nearly
    one-hot the gradients are what cancellation leaves, and one such draw would be all of an arithmetic mean. There is a
    scale a feature: a single number may be right by luck. If this PyTorch has no such kernels, every result of the
    chain is rounded."""
    generator = samples.random(name)
    errors, none = {}, torch.finfo(dtype).eps / 64
    for _ in range(11):
        ours, theirs = models(generator, inputs, outputs, dtype, device, scale_shape=(outputs,))
        exact = copy.deepcopy(theirs).double()
        for model in (ours, theirs, exact):
            model.train(train)
        x, upstream = draw(generator, rows, inputs, dtype, device), draw(generator, rows, outputs, dtype, device)
        x = x * 0.125  # rows of softmax with one large element have few gradients, and their errors no mean
        expected, found = step(exact, x.double(), upstream.double()), step(ours, x, upstream)
        try:
            eager = step(theirs, x, upstream)
        except RuntimeError:
            assert VERSION < (2, 2) and dtype in HALF and device == "cpu"
            eager = Rounded(theirs, dtype).train(train).step(x, upstream)
        for result, tensor in found.items():
            assert tensor.dtype is eager[result].dtype, result
            if result == "gemm.bias" and train:
                assert not tensor.any()
            else:
                pair = [math.log(max(off(one, expected[result]), none)) for one in (tensor, eager[result])]
                errors.setdefault(result, []).append(pair)
    return {result: [math.exp(sum(column) / len(pairs)) for column in zip(*pairs)] for result, pairs in errors.items()}


def check_errors(errors, dtype):
    """Ours is below PyTorch's (0.7 of it in float32, a third in half types), within what chance makes of the draws:
    twice that, and one rounding."""
    eps = torch.finfo(dtype).eps
    assert len(errors) >= 8
    for result, (error, theirs) in errors.items():
        assert error <= 2 * theirs + eps and error < 1, (result, error, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_types(train, dtype):
    check_errors(errors_beside_pytorch("types %s %s" % (train, dtype), dtype, train, 128, 200, 60), dtype)


@pytest.mark.parametrize("way", ["eager", pytest.param("compiled", marks=samples.needs_whole_graphs)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_exact_fp32(train, dtype, way, calls, monkeypatch):
    """It reaches forward and backward, of float32 alone, and changes nothing on the CPU."""
    generator = samples.random("exact_fp32 %s %s" % (train, dtype))
    ours, _ = models(generator, 8, 5, dtype)
    exact = LinearBatchNormSoftmax(8, 5, exact_fp32=True).to(dtype)
    exact.load_state_dict(ours.state_dict())
    x, upstream = draw(generator, 6, 8, dtype), draw(generator, 6, 5, dtype)
    found = []
    with samples.products_asked(calls, monkeypatch) as asked:
        for model, told in ((ours.train(train), _native.FP32_SPLIT), (exact.train(train), _native.FP32_VENDOR)):
            if way == "compiled":
                torch._dynamo.reset()
                model.forward = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
            found.append(step(model, x, upstream))
            told = told if dtype is torch.float32 else _native.FP32_FULL
            assert asked() == [("head", told), ("head_backward", told)]
            with torch.no_grad():
                model(x)
            assert asked() == [("head", told)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_fifty_steps(dtype, momentum):
    """Running statistics and the counter after fifty steps of training, an SGD step after each. The parameters are the
    same in both before each step: a rounding that one makes would otherwise grow from step to step."""
    generator = samples.random("fifty %s %s" % (dtype, momentum))
    ours, theirs = models(generator, 20, 10, dtype, bn_momentum=momentum)
    theirs = theirs.double()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    for _ in range(50):
        x, upstream = draw(generator, 16, 20, dtype), draw(generator, 16, 10, dtype)
        step(ours, x, upstream), step(theirs, x.double(), upstream.double())
        for optimizer in optimizers:
            optimizer.step()
        for found, expected in zip(ours.parameters(), theirs.parameters()):
            size = max(float(expected.detach().norm()), 0.1)  # the scale may pass 0
            assert off(found, expected, size) <= (1e-12 if dtype is torch.float64 else 1e-5)
            expected.data.copy_(found.data)
    assert int(ours.bn.num_batches_tracked) == int(theirs.bn.num_batches_tracked) == 50
    for (name, found), (_, expected) in zip(ours.named_buffers(), theirs.named_buffers()):
        limit = 1e-12 if dtype is torch.float64 else 2e-6
        assert off(found, expected) <= limit, (name, off(found, expected))


def test_statistics_are_updated_in_place():
    """CUDA graphs and everybody else who holds them see the same memory."""
    ours, _ = models(samples.random("in place"), 6, 4)
    before = {name: (buffer, buffer.data_ptr(), buffer.clone()) for name, buffer in ours.named_buffers()}
    ours(torch.rand(5, 6, dtype=torch.float64))
    assert sorted(before) == ["bn.num_batches_tracked", "bn.running_mean", "bn.running_var"]
    for name, buffer in ours.named_buffers():
        assert buffer is before[name][0] and buffer.data_ptr() == before[name][1], name
        assert not torch.equal(buffer, before[name][2]), name


@pytest.mark.parametrize("grad", [True, False])
def test_autograd_knows_of_the_update(grad):
    """Who needs the statistics as they were before a step is told so; an eval pass writes to none. (PyTorch's own
    batch_norm tells of the counter alone.)"""
    ours, _ = models(samples.random("versions"), 6, 4)
    x = torch.rand(5, 6, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        for train in (True, False):
            before = [buffer._version for buffer in ours.buffers()]
            ours.train(train)(x)
            assert [buffer._version > old for buffer, old in zip(ours.buffers(), before)] == [train] * 3
    w = torch.rand(4, dtype=torch.float64, requires_grad=True)
    value = (w * ours.bn.running_mean).sum()
    ours.train()(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_statistics_of_the_inference_mode():
    """They cannot be written outside of it, and are not; a newer PyTorch says so of its own, too."""
    with torch.inference_mode():
        ours, theirs = models(samples.random("inference"), 6, 4)
        x = torch.rand(5, 6, dtype=torch.float64)
        assert off(ours(x), theirs(x)) <= CLOSE
    before = ours.bn.running_mean.clone()
    with torch.no_grad(), pytest.raises(RuntimeError, match="inference tensor outside InferenceMode"):
        ours(x)
    assert torch.equal(ours.bn.running_mean, before)


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_flag_set_later(train):
    """track_running_stats = False after construction: training neither uses nor updates the buffers, eval uses them."""
    generator = samples.random("flag %s" % train)
    ours, theirs = models(generator, 6, 4)
    for model in (ours, theirs):
        model.bn.track_running_stats = False
        model.train(train)
    before = ours.bn.running_mean.clone()
    x, upstream = draw_step(generator, theirs, 8)
    check(step(ours, x, upstream), step(theirs, x, upstream), train)
    assert torch.equal(ours.bn.running_mean, before) and int(ours.bn.num_batches_tracked) == 0


def test_frozen_batch_norm(calls):
    """bn.eval() in a model that trains: running statistics, with gradients."""
    generator = samples.random("frozen")
    ours, theirs = models(generator, 6, 4)
    ours.bn.eval(), theirs.bn.eval()
    x, upstream = draw_step(generator, theirs, 8)
    check(step(ours, x, upstream), step(theirs, x, upstream), False)
    assert len(calls) == 2


def test_cumulative_without_a_counter():
    """As nn.BatchNorm1d: nothing is updated."""
    ours, theirs = models(samples.random("no counter"), 6, 4, bn_momentum=None)
    ours.bn.num_batches_tracked = theirs.bn.num_batches_tracked = None
    x = torch.rand(5, 6, dtype=torch.float64)
    assert off(ours(x), theirs(x)) <= CLOSE
    assert off(ours.bn.running_mean, theirs.bn.running_mean) <= CLOSE
    assert off(ours.bn.running_var, theirs.bn.running_var) <= CLOSE


def test_empty_batch():
    for train in (True, False):
        ours, theirs = models(samples.random("empty"), 6, 4)
        ours.train(train), theirs.train(train)
        x, upstream = torch.empty(0, 6, dtype=torch.float64), torch.empty(0, 4, dtype=torch.float64)
        found, expected = step(ours, x, upstream), step(theirs, x, upstream)
        assert list(found) == list(expected)
        for name in found:
            assert found[name].shape == expected[name].shape
            assert off(found[name], expected[name]) == 0, name


@pytest.mark.parametrize("which", ["x", "weight", "upstream"])
def test_layouts(which):
    generator = samples.random("layouts " + which)
    ours, theirs = models(generator, 8, 5)
    x, upstream = draw_step(generator, theirs, 6)
    tensors = {"x": x, "upstream": upstream, "weight": theirs.gemm.weight.detach()}
    expected = step(theirs, tensors["x"], tensors["upstream"])
    for tensor in samples.layouts(tensors[which]).values():
        given = dict(tensors)
        given[which] = tensor
        model = copy.deepcopy(ours)
        model.gemm.weight = nn.Parameter(given["weight"])
        check(step(model, given["x"], given["upstream"]), expected, True)


def test_expanded_input_and_upstream():
    ours, theirs = models(samples.random("expanded"), 8, 5)
    ours.eval(), theirs.eval()
    x = torch.rand(1, 8, dtype=torch.float64).expand(6, 8)
    found = torch.autograd.grad(ours(x).sum(), list(ours.parameters()))
    assert all(float(grad.abs().max()) < 1e-14 for grad in found)  # rows of softmax add up to 1
    assert off(ours(x), theirs(x)) <= CLOSE


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tracks", [True, False])
def test_batch_of_one(tracks):
    """PyTorch's own error, and the state it leaves; without running statistics in eval too."""
    ours, theirs = models(samples.random("one"), 6, 4, track_running_stats=tracks)
    x = torch.rand(1, 6, dtype=torch.float64)
    text = r"Expected more than 1 value per channel when training, got input size torch.Size\(\[1, 4\]\)"
    for model in (ours, theirs):
        with pytest.raises(ValueError, match=text):
            model(x)
    for found, expected in zip(ours.buffers(), theirs.buffers()):
        assert torch.equal(found, expected)
    ours.eval(), theirs.eval()
    if tracks:
        assert off(ours(x), theirs(x)) <= CLOSE
    else:
        with pytest.raises(ValueError, match=text):
            ours(x)


@pytest.mark.parametrize("shape", [(6,), (2, 3, 4, 6), (5, 7), (5, 4, 6), (5, 3, 6)], ids=str)
def test_other_ranks_and_wrong_shapes(shape):
    """What PyTorch makes of it: with three dimensions batch normalisation has its features in the second."""
    ours, theirs = models(samples.random("ranks %s" % (shape,)), 6, 4)
    x = torch.rand(shape, dtype=torch.float64)
    try:
        expected = theirs(x)
    except Exception as error:
        with pytest.raises(type(error)) as found:
            ours(x)
        assert str(found.value) == str(error)
    else:
        assert shape == (5, 4, 6)
        assert off(ours(x), expected) <= CLOSE and off(ours.bn.running_mean, theirs.bn.running_mean) <= CLOSE


def test_mixed_types_are_refused():
    ours, theirs = models(samples.random("mixed"), 6, 4, torch.float32)
    for model in (ours, theirs):
        with pytest.raises(RuntimeError):
            model(torch.rand(5, 6, dtype=torch.float64))
    ours.double(), theirs.double()
    ours.bn.float(), theirs.bn.float()
    for model in (ours, theirs):
        with pytest.raises(RuntimeError):
            model(torch.rand(5, 6, dtype=torch.float64))


def test_eval_without_statistics_is_refused():
    with pytest.raises(RuntimeError, match="running_mean"):
        linear_batch_norm_softmax(torch.rand(5, 6), torch.rand(4, 6), None, None, None, None, None, torch.ones(1),
                                  False, 0.1, 1e-5)


# ---- the function ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1, 4])
@pytest.mark.parametrize("training", [True, False])
def test_gradcheck(training, scale):
    tensors = leaves(samples.random("gradcheck %s %d" % (training, scale)), scale)
    assert torch.autograd.gradcheck(lambda *a: functional(*a, training), tensors)
    assert torch.autograd.gradgradcheck(lambda *a: functional(*a, training), tensors)


def test_third_derivative():
    """d^3/ds^3 of a function of the scale, by three backward passes."""
    tensors = leaves(samples.random("third"))
    upstream = torch.rand(6, 4, dtype=torch.float64)

    def third(function):
        value = (function(*tensors, True) * upstream).sum()
        for _ in range(3):
            value, = torch.autograd.grad(value.sum(), tensors[5:], create_graph=True)
        return value

    def chain(x, weight, bias, gamma, beta, scale, training):
        z = F.batch_norm(F.linear(x, weight, bias), None, None, gamma, beta, True, 0.1, 1e-3)
        return torch.softmax(scale * z, 1)

    assert off(third(functional), third(chain)) <= 1e-9


def test_gradients_of_inputs_made_of_each_other():
    """The second derivative of a call whose input is made of its weight counts no path twice."""
    weight = samples.leaf(draw(samples.random("each other"), 4, 3))

    def loss(function):
        x = torch.cat([weight, weight.square()])
        output = function(x, weight)
        gradient, = torch.autograd.grad((output * output).sum(), weight, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), weight)[0]

    nothing = (None,) * 4
    found = loss(lambda x, w: linear_batch_norm_softmax(x, w, None, *nothing, torch.ones(1).double(), True, 0.1, 1e-3))
    expected = loss(lambda x, w: torch.softmax(F.batch_norm(F.linear(x, w), *nothing, True, 0.1, 1e-3), 1))
    assert off(found, expected) <= 1e-9


@pytest.mark.parametrize("asked", range(6))
def test_only_what_is_asked(asked, calls):
    tensors = [tensor.detach().requires_grad_(i == asked) for i, tensor in enumerate(leaves(samples.random("asked")))]
    functional(*tensors, False).square().sum().backward()
    assert [tensor is not None for tensor in calls[-1][1][11:17]] == [i == asked for i in range(6)]
    assert [tensor.grad is not None for tensor in tensors] == [i == asked for i in range(6)]
    everything = [tensor.detach().requires_grad_() for tensor in tensors]
    functional(*everything, False).square().sum().backward()
    assert off(tensors[asked].grad, everything[asked].grad) <= CLOSE


def chain_gradients(tensors, upstream, training):
    """(gradients, second gradients or None) of PyTorch's chain to the tensors that need them."""
    x, weight, bias, gamma, beta, scale = tensors
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    mean, var = torch.linspace(-1, 1, 4, dtype=torch.float64), torch.linspace(0.5, 2, 4, dtype=torch.float64)
    normalised = F.batch_norm(F.linear(x, weight, bias), mean, var, gamma, beta, training, 0.1, 1e-3)
    first = torch.autograd.grad((torch.softmax(scale * normalised, 1) * upstream).sum(), wanted, create_graph=True)
    value = sum(gradient.square().sum() for gradient in first if gradient.requires_grad)
    return first, torch.autograd.grad(value, wanted, allow_unused=True)


@pytest.mark.parametrize("asked", range(1, 64))
def test_only_what_is_needed_is_kept(asked, calls):
    """The input for the gradient to the weight, the weight for that to the input; second derivatives without them."""
    needs = [bool(asked >> i & 1) for i in range(6)]
    generator = samples.random("kept %d" % asked)
    for training in (True, False):
        zero = [training and i == 2 for i in range(6) if needs[i]]  # the bias: theirs is rounding noise
        for _ in range(1000):  # until something is left of every gradient, beside which a rounding is not large
            tensors = [tensor.detach().requires_grad_(need) for tensor, need in zip(leaves(generator, 4), needs)]
            upstream = draw(generator, 6, 4)
            expected, expected_second = chain_gradients(tensors, upstream, training)
            if all(none or float(first.detach().norm()) >= 1e-2 and float(second.norm()) >= 1e-2
                   for none, first, second in zip(zero, expected, expected_second)):
                break
        else:
            pytest.fail("no draw in a thousand leaves much of every gradient")
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        output = functional(*tensors, training)
        assert [tensor is not None for tensor in output.grad_fn.saved_tensors[4:6]] == [needs[1], needs[0]]
        found = torch.autograd.grad((output * upstream).sum(), wanted, retain_graph=True)
        again = torch.autograd.grad((output * upstream).sum(), wanted, create_graph=True)
        for none, made, second, other in zip(zero, found, again, expected):
            limit = 1e-13 if none else 1e-11 * float(other.detach().norm())
            assert float((made - other).detach().norm()) <= limit
            assert float((second - other).detach().norm()) <= limit
        if not all(zero):
            value = sum(gradient.square().sum() for gradient in again if gradient.requires_grad)
            for none, a, b in zip(zero, torch.autograd.grad(value, wanted, allow_unused=True), expected_second):
                assert none or a is not None and off(a, b) <= 1e-9


def test_nothing_is_kept_without_gradients(calls):
    tensors = leaves(samples.random("kept"))
    with torch.no_grad():
        output = functional(*tensors, True)
    assert not output.requires_grad and calls[0][1][11:14] == (None, None, None)
    functional(*[tensor.detach() for tensor in tensors], True)
    assert calls[1][1][11:14] == (None, None, None)


def test_backward_twice():
    tensors = leaves(samples.random("twice"))
    value = functional(*tensors, True).square().sum()
    first = torch.autograd.grad(value, tensors, retain_graph=True)
    second = torch.autograd.grad(value, tensors)
    assert all(samples.same(a, b) for a, b in zip(first, second))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(value, tensors)


def test_a_changed_output_is_noticed():
    output = functional(*leaves(samples.random("changed")), True)
    with torch.no_grad():
        output.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_statistics_changed_between_forward_and_backward():
    """An eval pass, a training pass, then backward through the first: it has the statistics it was made with.
    (PyTorch's batch_norm then has the changed ones.)"""
    generator = samples.random("between")
    ours, _ = models(generator, 6, 4)
    x, other = draw(generator, 8, 6).requires_grad_(), draw(generator, 8, 6)
    expected, = torch.autograd.grad(ours.eval()(x).square().sum(), x)
    value = ours(x).square().sum()
    ours.train()(other)
    found, = torch.autograd.grad(value, x, retain_graph=True)
    assert samples.same(found, expected)
    twice, = torch.autograd.grad(value, x, create_graph=True)
    assert off(twice, expected) <= CLOSE


@pytest.mark.parametrize("scale", [2.5, -1, None])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_scale_that_is_a_number_or_none(dtype, training, scale, calls):
    generator = samples.random("number %s" % scale)
    tensors = [tensor.detach() for tensor in leaves(generator)[:5]]
    tensors[3] = tensors[3].sign() * 0.2  # without rows of softmax that have one large element, and hardly a gradient
    tensors = [tensor.to(dtype).requires_grad_() for tensor in tensors]
    found = functional(*tensors, scale, training)
    assert len(calls) == 1 and found.dtype is dtype
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = functional(*exact, torch.tensor(1.0 if scale is None else float(scale)).double(), training)
    limit = CLOSE if dtype is torch.float64 else 8 * torch.finfo(dtype).eps
    assert off(found, expected) <= limit
    upstream = draw(generator, 6, 4)
    found = torch.autograd.grad(found, tensors, upstream.to(dtype))
    expected = torch.autograd.grad(expected, exact, upstream.to(dtype).double())
    for i, (a, b) in enumerate(zip(found, expected)):
        assert off(a, b) <= 64 * limit if i != 2 or not training else not a.any(), i


# ---- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("scale_shape", [(1,), ()], ids=str)
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_input_float_normalisation(dtype, scale_shape, train, calls):
    """A half-precision layer with statistics and parameters of bn in float32; the scale decides the output's type."""
    generator = samples.random("mixes %s %s %s" % (dtype, scale_shape, train))
    ours, theirs = models(generator, 30, 9, torch.float32, scale_shape=scale_shape)
    exact = copy.deepcopy(theirs)
    exact.gemm.to(dtype)
    exact = exact.double().train(train)
    ours.gemm.to(dtype), theirs.gemm.to(dtype)
    ours.train(train), theirs.train(train)
    x, upstream = draw(generator, 20, 30, dtype), draw(generator, 20, 9, torch.float32)
    found, expected = step(ours, x, upstream), step(exact, x.double(), upstream.double())
    assert len(calls) == 2
    assert found["output"].dtype is (torch.float32 if scale_shape else dtype)
    if VERSION >= (2, 2):
        eager = step(theirs, x, upstream)
        assert {name: tensor.dtype for name, tensor in found.items()} == {n: t.dtype for n, t in eager.items()}
    # Up to the output everything is float32: a float32 output has not seen half precision.
    assert off(found["output"], expected["output"]) <= (2e-5 if scale_shape else torch.finfo(dtype).eps)
    for name in ("bn.running_mean", "bn.running_var"):
        assert found[name].dtype is torch.float32 and off(found[name], expected[name]) <= 1e-6
    for name, size in sizes(exact, x.double(), upstream.double(), dtype).items():
        assert off(found[name], expected[name], size) <= torch.finfo(dtype).eps, name


@pytest.mark.parametrize("scale_shape", [(1,), ()], ids=str)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_autocast(train, scale_shape, calls):
    """The type of the chain's output; the layer in bfloat16, everything after it in float32."""
    generator = samples.random("autocast %s %s" % (train, scale_shape))
    ours, theirs = models(generator, 30, 9, torch.float32, scale_shape=scale_shape)
    ours.train(train), theirs.train(train)
    exact = copy.deepcopy(theirs).double()
    with torch.no_grad():
        exact.gemm.weight.copy_(exact.gemm.weight.bfloat16())
    x, upstream = draw(generator, 20, 30, torch.float32), draw(generator, 20, 9, torch.float32)
    made = []
    for model in (ours, theirs):
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(leaf)
        output.backward(upstream.to(output.dtype))
        made.append(dict([("output", output), ("x", leaf.grad)] + [(n, p.grad) for n, p in model.named_parameters()]))
    assert [name for name, _ in calls] == ["head", "head_backward"]
    assert {name: tensor.dtype for name, tensor in made[0].items()} == {n: t.dtype for n, t in made[1].items()}
    expected = step(exact, x.bfloat16().double(), upstream.double())
    assert off(made[0]["output"], expected["output"]) <= (2e-5 if scale_shape or VERSION < (1, 12) else 2**-7)
    for name, size in sizes(exact, x.bfloat16().double(), upstream.double(), torch.bfloat16).items():
        assert off(made[0][name], expected[name], size) <= 2**-7, name
    assert off(ours.bn.running_var, exact.bn.running_var) <= 1e-6


def test_autocast_double_backward():
    ours, _ = models(samples.random("autocast twice"), 6, 4, torch.float32)
    x = torch.rand(8, 6, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradient, = torch.autograd.grad(ours(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
    assert x.grad.dtype is torch.float32 and bool(torch.isfinite(x.grad).all()) and float(x.grad.abs().sum()) > 0


# ---- modules that are more than they seem ----------------------------------------------------------------------------


def hook_gemm(model, fired):
    model.gemm.register_forward_hook(lambda *_: fired.append("gemm"))


def hook_bn_before(model, fired):
    model.bn.register_forward_pre_hook(lambda *_: fired.append("bn"))


def hook_backward(model, fired):
    model.bn.register_full_backward_hook(lambda *_: fired.append("backward"))


def patch_forward(model, fired):
    forward = model.gemm.forward
    model.gemm.forward = lambda x: fired.append("patched") or forward(x)


def parametrize(model, fired):
    class Doubled(nn.Module):
        def forward(self, weight):
            fired.append("parametrized")
            return weight * 2

    nn.utils.parametrize.register_parametrization(model.gemm, "weight", Doubled())


def subclass(model, fired):
    class Louder(nn.BatchNorm1d):
        def forward(self, x):
            fired.append("subclass")
            return super().forward(x) * 3

    model.bn.__class__ = Louder


@pytest.mark.parametrize("change", [hook_gemm, hook_bn_before, hook_backward, patch_forward, parametrize, subclass])
def test_submodules_that_do_more(change, calls):
    import torch.nn.utils.parametrize  # noqa: F401
    generator = samples.random("more " + change.__name__)
    ours, theirs = models(generator, 6, 4)
    fired, fired_theirs = [], []
    change(ours, fired), change(theirs, fired_theirs)
    x, upstream = draw(generator, 8, 6), draw(generator, 8, 4)
    found, expected = step(ours, x, upstream), step(theirs, x, upstream)
    for name in expected:
        assert off(found[name], expected[name]) <= CLOSE or name.endswith("bias"), name
    assert fired == fired_theirs != [] and calls == []


def test_global_hooks():
    ours, _ = models(samples.random("global"), 6, 4)
    fired = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: fired.append(type(module)))
    try:
        ours(torch.rand(5, 6, dtype=torch.float64))
    finally:
        handle.remove()
    assert fired == [nn.Linear, nn.BatchNorm1d, LinearBatchNormSoftmax]


def test_hooks_of_the_module_itself(calls):
    ours, _ = models(samples.random("own"), 6, 4)
    fired = []
    ours.register_forward_hook(lambda *_: fired.append("own"))
    ours(torch.rand(5, 6, dtype=torch.float64))
    assert fired == ["own"] and len(calls) == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies(copied):
    ours, theirs = models(samples.random("copies"), 6, 4)
    x = torch.rand(5, 6, dtype=torch.float64)
    ours(x), theirs(x)
    twin = copied(ours)
    assert off(twin(x), theirs(x)) <= CLOSE
    assert int(twin.bn.num_batches_tracked) == 2 and int(ours.bn.num_batches_tracked) == 1
    file = io.BytesIO()
    torch.save(twin.state_dict(), file)
    file.seek(0)
    ours.load_state_dict(torch.load(file))
    assert torch.equal(ours.bn.running_var, twin.bn.running_var)


# ---- memory and threads ----------------------------------------------------------------------------------------------


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_loops_leave_nothing():
    ours, _ = models(samples.random("loops"), 40, 30, torch.float32)
    x = torch.rand(64, 40)
    gc.collect()
    gc.disable()
    try:
        for i in range(2200):
            if i == 200:
                before = resident()
            output = ours(x.requires_grad_())
            if i % 3:
                output.sum().backward()
            elif i % 2:
                torch.autograd.grad(output.sum(), x, create_graph=True)
            watched = weakref.ref(output)
            del output
            assert watched() is None
        grown = resident() - before
    finally:
        gc.enable()
    assert grown < 4 << 20, grown  # an output lost every step would be 15 MiB


def test_threads():
    """Threads that call at once have a handle and a workspace each."""
    generator = samples.random("threads")
    pairs = [models(generator, 40, 30) for _ in range(4)]
    steps = [draw_step(generator, theirs, 32) for _, theirs in pairs]
    wrong = []

    def work(ours, theirs, x, upstream):
        try:
            for _ in range(20):
                check(step(ours, x, upstream), step(theirs, x, upstream), True)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=pair + drawn) for pair, drawn in zip(pairs, steps)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
