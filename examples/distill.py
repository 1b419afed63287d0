#!/usr/bin/env python3
"""Distils a small language model into a smaller one, three ways side by side, on data that it makes itself.

A teacher learns a language of random bigrams and trigrams; students of half its width learn from the teacher alone:

  logits   kl_div_logits of all logits of both, as most programs do it
  hidden   linear_kl_div of hidden states and weights: never more than a chunk of logits on either side
  top-k    kl_div_top_k of the teacher's k largest log-probabilities, as they come from a server or from disk

All three start from the same weights and see the same batches. The table has the KL divergence from the teacher on text
that nobody was trained on, the time of a training step, and the memory that one step takes beside the weights: on the
CPU the largest sum of what PyTorch's tensors and the library's workspace take, on CUDA the allocator's peak. With
matplotlib the curves are drawn too.

  python3 examples/distill.py                  under a minute on two cores
  python3 examples/distill.py --device cuda
"""

import argparse
import os
import time

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler, which tells the memory, has much to say otherwise

import torch
from torch import nn
from torch.nn import functional as F

from onepass.torch import kl_div_logits, kl_div_top_k, linear_kl_div


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda, where PyTorch has it")
    parser.add_argument("--steps", type=int, default=60, help="training steps of each student")
    parser.add_argument("--teacher-steps", type=int, default=150)
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--width", type=int, default=96, help="of the teacher; students have half of it")
    parser.add_argument("--tokens", type=int, default=1024, help="of a batch")
    parser.add_argument("--top-k", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--chunk-mib", type=float, default=4, help="of the logits from hidden states")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", default="distill.png", help="where the curves go, if matplotlib is there")
    return parser.parse_args()


# ---- the language ----------------------------------------------------------------------------------------------------


class Language:
    """Each pair of tokens is followed by one of a few, chosen at random once and for all."""

    def __init__(self, vocabulary, generator, choices=8):
        self.vocabulary, self.generator = vocabulary, generator
        self.next = torch.randint(0, vocabulary, (vocabulary, 4, choices), generator=generator)
        self.weights = torch.softmax(2 * torch.randn(vocabulary, choices, generator=generator), -1)

    def batch(self, tokens, length=32):
        """(text [tokens / length, length], its next tokens)"""
        rows = max(tokens // length, 1)
        text = [torch.randint(0, self.vocabulary, (rows,), generator=self.generator) for _ in range(2)]
        for _ in range(length - 1):
            choice = torch.multinomial(self.weights[text[-1]], 1, generator=self.generator).squeeze(-1)
            text.append(self.next[text[-1], text[-2] % 4, choice])
        text = torch.stack(text, -1)
        return text[:, :-1], text[:, 1:]


# ---- models ----------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    """Hidden states from a token and the one before it; the logits are head's of them."""

    def __init__(self, vocabulary, width):
        super().__init__()
        self.token, self.before = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                  nn.Linear(4 * width, width))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, text):
        x = self.token(text) + self.before(F.pad(text[:, :-1], (1, 0)))
        return (x + self.body(x)).flatten(0, 1)


def train(model, loss_of, batches, rate):
    """The loss and the seconds of every step."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    losses, seconds = [], []
    for text, labels in batches:
        begin = time.perf_counter()
        optimiser.zero_grad()
        loss = loss_of(model, text, labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())  # waits for the device
        seconds.append(time.perf_counter() - begin)
    return losses, seconds


def cross_entropy(model, text, labels):
    return F.cross_entropy(model.head(model(text)), labels.flatten())


# ---- three losses ----------------------------------------------------------------------------------------------------


def losses_from(teacher, arguments):
    """{name: loss of (student, text, labels)}"""
    temperature = arguments.temperature
    scale = temperature ** 2

    def from_logits(student, text, labels):
        with torch.no_grad():
            targets = teacher.head(teacher(text))
        return kl_div_logits(student.head(student(text)), targets, temperature=temperature, divergence_weight=scale)

    def from_hidden(student, text, labels):
        with torch.no_grad():
            hidden = teacher(text)
        return linear_kl_div(student(text), student.head.weight, hidden, teacher.head.weight.detach(),
                             linear_bias=student.head.bias, target_bias=teacher.head.bias.detach(),
                             temperature=temperature, divergence_weight=scale,
                             chunk_bytes=int(arguments.chunk_mib * 2 ** 20))

    def from_top_k(student, text, labels):
        with torch.no_grad():  # what a server would have sent
            log_probs = F.log_softmax(teacher.head(teacher(text)) / temperature, -1)
            values, indices = log_probs.topk(min(arguments.top_k, log_probs.shape[-1]))
            del log_probs
        return kl_div_top_k(student.head(student(text)), values, indices, temperature=temperature,
                            divergence_weight=scale)

    return {"logits": from_logits, "hidden": from_hidden, "top-k": from_top_k}


def divergence(student, teacher, batches):
    """KL(teacher || student) per token."""
    with torch.no_grad():
        values = [kl_div_logits(student.head(student(text)), teacher.head(teacher(text))) for text, _ in batches]
    return float(sum(values)) / len(values)


def peak_bytes(step, device):
    """What a step takes at most beside what is there before it; None: this PyTorch cannot tell."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        with torch.autograd.profiler.profile(profile_memory=True) as profile:
            step()
        events = sorted((event for event in profile.kineto_results.events() if event.name() == "[memory]"),
                        key=lambda event: event.start_ns() if hasattr(event, "start_ns") else event.start_us())
        taken = most = 0
        for event in events:
            taken += event.nbytes()
            most = max(most, taken)
        return most or None
    except (AttributeError, RuntimeError):
        return None


# ---- all of it -------------------------------------------------------------------------------------------------------


def draw(curves, path):
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not there")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    for name, losses in curves.items():
        pyplot.plot(losses, label=name)
    pyplot.xlabel("step")
    pyplot.ylabel("loss")
    pyplot.yscale("log")
    pyplot.legend()
    pyplot.savefig(path)
    print("curves: %s" % path)


def main():
    arguments = read_arguments()
    device = torch.device(arguments.device)
    torch.manual_seed(arguments.seed)
    language = Language(arguments.vocabulary, torch.Generator().manual_seed(arguments.seed))

    def batches(count):
        return [tuple(part.to(device) for part in language.batch(arguments.tokens)) for _ in range(count)]

    teacher = Model(arguments.vocabulary, arguments.width).to(device)
    losses, _ = train(teacher, cross_entropy, batches(arguments.teacher_steps), 5e-3)
    print("teacher: cross-entropy %.3f, then %.3f" % (losses[0], losses[-1]))

    student = Model(arguments.vocabulary, arguments.width // 2).to(device)
    weights = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    seen, unseen = batches(arguments.steps), batches(4)
    print("student: KL from the teacher %.3f before" % divergence(student, teacher, unseen))
    print("%-8s %12s %12s %12s %12s %12s" % ("", "loss, first", "loss, last", "KL, unseen", "ms a step", "MiB a step"))
    curves = {}
    for name, loss_of in losses_from(teacher, arguments).items():
        student.load_state_dict(weights)
        curves[name], seconds = train(student, loss_of, seen, 5e-3)
        reached = divergence(student, teacher, unseen)
        for parameter in student.parameters():
            parameter.grad = None
        most = peak_bytes(lambda: loss_of(student, *seen[0]).backward(), device)
        print("%-8s %12.3f %12.3f %12.3f %12.1f %12s" % (
            name, curves[name][0], curves[name][-1], reached, 1000 * sorted(seconds)[len(seconds) // 2],
            "?" if most is None else "%.1f" % (most / 2 ** 20)))
    draw(curves, arguments.plot)


if __name__ == "__main__":
    main()
