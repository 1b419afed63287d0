"""The references in problems/ for losses from hidden states and of top-k teachers, before the judge: what the library
makes of them is accepted, and what looks right and is not is rejected."""

import pathlib
import textwrap

import pytest

from onepass.judge.__main__ import main

onepass_torch = pytest.importorskip("onepass.torch", reason="the compiled library is not here")

PROBLEMS = pathlib.Path(__file__).resolve().parents[2] / "problems"

LINEAR_CROSS_ENTROPY = """
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from onepass.torch import linear_cross_entropy

    class ModelNew(nn.Module):
        def __init__(self, width, vocabulary):
            super().__init__()
            self.head = nn.Linear(width, vocabulary, bias=False)

        def forward(self, hidden, labels):
            %s
"""
KL_TOP_K = """
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from onepass.torch import kl_div_top_k

    class ModelNew(nn.Module):
        def forward(self, student, log_probs, classes):
            %s
"""

HONEST = [
    ("linear_cross_entropy", LINEAR_CROSS_ENTROPY,
     "return linear_cross_entropy(hidden, self.head.weight, labels).to(hidden.dtype)"),
    ("linear_cross_entropy", LINEAR_CROSS_ENTROPY,
     "return linear_cross_entropy(hidden, self.head.weight, labels, chunk_bytes=1).to(hidden.dtype)"),
    ("kl_top_k", KL_TOP_K, "return kl_div_top_k(student, log_probs.detach(), classes).to(student.dtype)"),
]

WRONG = [
    # The weight stays as it is.
    ("linear_cross_entropy", LINEAR_CROSS_ENTROPY, "gradients",
     "return linear_cross_entropy(hidden, self.head.weight.detach(), labels).to(hidden.dtype)"),
    # Ignored labels count in the divisor.
    ("linear_cross_entropy", LINEAR_CROSS_ENTROPY, "special",
     "total = linear_cross_entropy(hidden, self.head.weight, labels, reduction='sum')\n"
     "            return (total / len(labels)).to(hidden.dtype)"),
    # Half of a vocabulary.
    ("linear_cross_entropy", LINEAR_CROSS_ENTROPY, "values",
     "return linear_cross_entropy(hidden, self.head.weight[::2], labels // 2).to(hidden.dtype)"),
    # What is not known is left out, as many programs do it.
    ("kl_top_k", KL_TOP_K, "values",
     "return kl_div_top_k(student, log_probs.detach(), classes, outside='zero').to(student.dtype)"),
    ("kl_top_k", KL_TOP_K, "values",
     "return kl_div_top_k(student, log_probs.detach(), classes, outside='renormalised').to(student.dtype)"),
    # The student's tail as what its named classes lack to 1: no digits where that is little.
    ("kl_top_k", KL_TOP_K, "rows", """t = log_probs.detach().exp()
            log_s = F.log_softmax(student, -1).gather(-1, classes)
            rest, t_rest = 1 - log_s.exp().sum(-1), (1 - t.sum(-1)).clamp(min=0)
            inside = (torch.xlogy(t, t) - t * log_s).sum(-1)
            return (inside + torch.xlogy(t_rest, t_rest) - t_rest * rest.clamp(min=1e-30).log()).mean()"""),
]


@pytest.fixture
def judge(tmp_path, nursery, capsys):
    def run(problem, text, body, *options):
        candidate = tmp_path / "candidate.py"
        candidate.write_text(textwrap.dedent(text % body), encoding="utf-8")
        code = main([str(PROBLEMS / (problem + ".py")), str(candidate), "--device", "cpu", "--size", "small",
                     "--no-time"] + list(options), nursery)
        printed = capsys.readouterr().out
        return code, printed.rstrip("\n").splitlines()[-1], printed
    return run


@pytest.mark.parametrize("problem, text, body", HONEST, ids=["linear_cross_entropy", "in_chunks", "kl_top_k"])
def test_the_library_is_accepted(judge, problem, text, body):
    code, verdict, printed = judge(problem, text, body)
    assert code == 0, printed
    assert verdict.startswith("accepted: "), printed


@pytest.mark.parametrize("problem, text, check, body", WRONG,
                         ids=["frozen", "divisor", "half", "zero", "renormalised", "difference"])
def test_what_is_wrong_is_rejected(judge, problem, text, check, body):
    code, verdict, printed = judge(problem, text, body, "--fail-fast")
    assert code == 1, printed
    assert verdict.startswith("rejected: %s: " % check), printed
