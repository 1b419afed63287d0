"""examples/distill.py, briefly: its table says what it promises, and its curves are drawn where matplotlib is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import onepass

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "distill.py"
BRIEF = ["--teacher-steps", "12", "--steps", "6", "--vocabulary", "700", "--width", "32", "--tokens", "1024",
         "--chunk-mib", "0.5"]

PYPLOT = '''
drawn = []

def plot(losses, label):
    drawn.append((label, len(losses)))

def savefig(path):
    open(path, "w").write(repr(drawn))

def xlabel(text): pass
def ylabel(text): pass
def yscale(text): pass
def legend(): pass
'''


def run(tmp_path, packages):
    there = [packages, Path(onepass.__file__).absolute().parents[1]]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, there)))
    done = subprocess.run([sys.executable, str(EXAMPLE)] + BRIEF + ["--plot", "curves.txt"], cwd=str(tmp_path),
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_table_and_curves(tmp_path):
    stand_in = tmp_path / "packages" / "matplotlib"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text("def use(name): pass\n")
    (stand_in / "pyplot.py").write_text(PYPLOT)
    said = run(tmp_path, stand_in.parent)
    rows = {words[0]: [float(word) for word in words[1:]]
            for words in (line.split() for line in said.splitlines()) if re.match(r"(logits|hidden|top-k)\b", words[0])}
    assert set(rows) == {"logits", "hidden", "top-k"}
    before = float(re.search(r"KL from the teacher ([\d.]+) before", said).group(1))
    for first, last, unseen, milliseconds, mebibytes in rows.values():
        assert 0 < last < first and 0 < unseen < before and milliseconds > 0 and mebibytes > 0
    for i in range(3):  # the same loss by another way, and by the same steps
        assert abs(rows["hidden"][i] - rows["logits"][i]) <= 0.002
    logits = 1024 * 700 * 4 / 2 ** 20  # of one side
    assert rows["hidden"][4] < rows["logits"][4] - logits
    assert (tmp_path / "curves.txt").read_text() == repr([("logits", 6), ("hidden", 6), ("top-k", 6)])
