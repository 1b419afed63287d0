#!/usr/bin/env python3
"""Mutation test of the CPU kernels: does a small mistake in the sources make a test fail?

    tests/mutate.py [--sample N] [--seed S] [--level scalar|avx2] [--file PATH ...] [--list]

Each mutant changes one operator, constant, comparison or statement of one file. The library and its tests are built
for one vector level with gcc -O1 in a directory of their own; for a mutant only the objects that include its file are
compiled again. A mutant is killed if it does not compile, a test fails, or a test hangs. Survivors are printed with
their change: each is a missing test or an equivalent mutant. Exit status 0: the run was complete; 2: it could not start.
"""
import argparse
import concurrent.futures
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGETS = ['src/kl/cpu.inc', 'src/kl/cpu_row.inc', 'src/kl/cpu_tile.inc', 'src/kl/cpu_terms.inc',
           'src/kl/cpu_segment.inc', 'src/cpu/strided.c', 'src/cpu/vec_math.inc', 'src/kl/cpu_plan.c',
           'src/kl/collapse.c', 'src/kl/define.h', 'src/kl/ref.c', 'src/core/tensor.c',
           'src/cpu/product.inc', 'src/linear/cpu.inc', 'src/head/cpu.inc', 'src/head/cpu_backward.inc',
           'src/cpu/product_plan.c', 'src/head/cpu_plan.c', 'src/head/features.c', 'src/linear/ref.c', 'src/head/ref.c',
           'src/core/operator.c', 'src/head/entry.c', 'src/linear/entry.c']
KL_TESTS = ['test_kl_special', 'test_api', 'test_operators', 'test_kl_tiles', 'test_kl']  # the ones that fail fastest first
HEAD_TESTS = ['test_head_api', 'test_operators', 'test_linear', 'test_head']
HARNESS = ['tests/entry_points.c', 'tests/harness.c', 'tests/head_cases.c', 'tests/kl_cases.c', 'cases/buffer.c',
           'cases/case.c', 'cases/head.c', 'cases/kl.c', 'cases/linear.c', 'cases/number.c', 'cases/run.c']
SECONDS = 90  # a mutant that takes longer hangs

# What is written -> what a slip would have made of it. Spaces keep pointers, signs and declarations out of it.
SWAPS = [
    (r' \+ ', [' - ']), (r' - ', [' + ']), (r' \* ', [' / ']), (r' / ', [' * ']), (r' % ', [' / ']),
    (r' < ', [' <= ', ' > ']), (r' <= ', [' < ']), (r' > ', [' >= ', ' < ']), (r' >= ', [' > ']),
    (r' == ', [' != ']), (r' != ', [' == ']), (r' && ', [' || ']), (r' \|\| ', [' && ']),
    (r' & ', [' | ']), (r' \| ', [' & ']), (r' \+= ', [' -= ']), (r' -= ', [' += ']), (r'\+\+', ['--']),
    (r'\bv_add\(', ['v_sub(']), (r'\bv_sub\(', ['v_add(']), (r'\bv_mul\(', ['v_div(']), (r'\bv_div\(', ['v_mul(']),
    (r'\bv_min\(', ['v_max(']), (r'\bv_max\(', ['v_min(']), (r'\bv_both\(', ['v_either(']), (r'\bv_either\(', ['v_both(']),
    (r'\bv_lt\(', ['v_ge(']), (r'\bv_ge\(', ['v_lt(']), (r'\bv_bits_add\(', ['v_bits_sub(']),
    (r'\bv_bits_sub\(', ['v_bits_add(']), (r'\bPREDICTION', ['TARGET']),
    (r'\bgrad_predictions\b', ['grad_targets']), (r'\bfinite\b', ['!finite']), (r'!(?=[a-zA-Z(])', ['']),
    (r'\blog\(', ['log1p(']), (r'\blog1p\(', ['log(']), (r'\bisfinite\(', ['!isfinite(']), (r'-(?=[A-Z]+\()', ['']),
]

NUMBER = re.compile(r'(?<![\w.])(?:0x[0-9a-fA-F.]+p[+-]?\d+|\d+(?:\.\d+)?)f?(?![\w.])')
STATEMENT = re.compile(r'^\s+(?!return\b|break\b|case\b|default\b|continue\b|goto\b|else\b|typedef\b|static\b|const\b)'
                       r'[\w\->.\[\]*&()+, ]+(?:\s[-+|&*]?=\s.*|\(.*\));\s*$')
DECLARATION = re.compile(r'^\s+(?:[A-Za-z_]\w*(?:\(\w+\))?\s+)+\**\w+(?:\[.*\])?\s*=')


def tests_for(path):
    """Those that look at what the file computes."""
    return HEAD_TESTS if re.search(r'product|linear|head|operator', path) else KL_TESTS


def without_comments(text):
    """The text with comments and strings blanked, every other character in its place."""
    pattern = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\])*"|^[ \t]*#[^\n]*', re.S | re.M)
    return pattern.sub(lambda m: re.sub(r'[^\n]', ' ', m.group()), text)


def mutants_of(path):
    """All (path, line number, old line, new line) of a file."""
    with open(os.path.join(ROOT, path)) as file:
        text = file.read()
    found = []
    for number, (line, code) in enumerate(zip(text.split('\n'), without_comments(text).split('\n'))):
        if 'onep_fail(' in code or re.match(r'\s*(?:static |typedef |enum |struct )', code) and code.endswith(('(', ',', '{')):
            continue
        changes = set()
        for pattern, replacements in SWAPS:
            for match in re.finditer(pattern, code):
                for replacement in replacements:
                    changes.add(line[:match.start()] + replacement + line[match.end():])
        for match in NUMBER.finditer(code):
            flag = code[:match.start()].endswith('= ') and match.group() == '1' and code[match.end():] == ';'
            for other in ('(%s - 1)' % match.group(), '(%s + 1)' % match.group())[:1 if flag else 2]:
                if '[' + match.group() + ']' not in code:
                    changes.add(line[:match.start()] + other + line[match.end():])
        if STATEMENT.match(code) and not DECLARATION.match(code):
            changes.add(re.match(r'\s*', line).group() + ';')
        found += [(path, number, line, new) for new in sorted(changes) if new != line]
    return found


class Build:
    """A copy of the tree with objects of its own."""

    def __init__(self, level):
        self.level = level
        self.dir = tempfile.mkdtemp(prefix='onepass-mutate-')
        for name in ('include', 'src', 'tests', 'cases'):
            shutil.copytree(os.path.join(ROOT, name), os.path.join(self.dir, name))
        self.flags = ['-std=c11', '-O1', '-w', '-ffp-contract=off', '-fno-math-errno', '-Iinclude', '-Isrc', '-I.']
        sources = ['src/levels/scalar.c']
        for folder in ('src', 'src/core', 'src/cpu', 'src/kl', 'src/linear', 'src/head'):
            sources += [os.path.join(folder, name) for name in sorted(os.listdir(os.path.join(self.dir, folder)))
                        if name.endswith('.c') and not name.startswith('cuda')]
        if level == 'avx2':
            self.flags.append('-DONEPASS_HAVE_AVX2=1')
            sources.append('src/levels/avx2.c')
        self.library = sources
        self.others = HARNESS + ['tests/%s.c' % name for name in KL_TESTS + HEAD_TESTS]
        self.uses = {}  # source -> every file of ours it includes

    def object_of(self, source):
        return source.replace('/', '_') + '.o'

    def command(self, source):
        special = ['-mavx2', '-mfma', '-mf16c'] if source.endswith('avx2.c') else []
        return ['gcc', *self.flags, *special]

    def compile(self, source):
        done = subprocess.run([*self.command(source), '-c', source, '-o', self.object_of(source)], cwd=self.dir,
                              capture_output=True, text=True)
        return done.returncode == 0

    def start(self):
        for source in self.library + self.others:
            if not self.compile(source):
                raise SystemExit('mutate: %s does not compile' % source)
            done = subprocess.run([*self.command(source), '-MM', source], cwd=self.dir, capture_output=True, text=True)
            self.uses[source] = set(done.stdout.replace('\\\n', ' ').split()[1:])

    def link(self, test):
        objects = [self.object_of(s) for s in self.library + HARNESS] + [self.object_of('tests/%s.c' % test)]
        done = subprocess.run(['gcc', *objects, '-lm', '-lpthread', '-o', test], cwd=self.dir, capture_output=True)
        return done.returncode == 0

    def verdict(self, tests):
        """The name of what notices, or None."""
        environment = dict(os.environ, ONEPASS_TEST_QUICK='1', ONEPASS_TEST_SEED='1', ONEPASS_TEST_STOP='1')
        for test in tests:
            if not self.link(test):
                return 'link'
            try:
                done = subprocess.run(['./' + test], cwd=self.dir, env=environment, timeout=SECONDS,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            except subprocess.TimeoutExpired:
                return test + ' (time)'
            if done.returncode != 0:
                return test
        return None

    def try_mutant(self, mutant):
        path, number, _, new = mutant
        full = os.path.join(self.dir, path)
        with open(full) as file:
            text = file.read()
        lines = text.split('\n')
        lines[number] = new
        affected = [s for s in self.library + self.others if path in self.uses[s]]
        try:
            with open(full, 'w') as file:
                file.write('\n'.join(lines))
            return 'compiler' if not all(self.compile(s) for s in affected) else self.verdict(tests_for(path))
        finally:
            with open(full, 'w') as file:
                file.write(text)
            for source in affected:
                self.compile(source)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--sample', type=int, default=0, help='that many mutants at random; 0: all')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--level', choices=['scalar', 'avx2'], default='avx2')
    parser.add_argument('--jobs', type=int, default=1)
    parser.add_argument('--file', action='append', help='mutate these files only')
    parser.add_argument('--list', action='store_true', help='print the mutants and stop')
    options = parser.parse_args()

    files = [path for path in options.file or TARGETS if os.path.exists(os.path.join(ROOT, path))]
    mutants = [mutant for path in files for mutant in mutants_of(path)]
    if options.sample and options.sample < len(mutants):
        mutants = sorted(random.Random(options.seed).sample(mutants, options.sample))
    if options.list:
        for path, number, old, new in mutants:
            print('%s:%d\n  - %s\n  + %s' % (path, number + 1, old.strip(), new.strip()))
        print('%d mutants' % len(mutants))
        return 0
    builds = [Build(options.level) for _ in range(options.jobs)]
    try:
        for build in builds:
            build.start()
        if builds[0].verdict(KL_TESTS + HEAD_TESTS) is not None:
            print('mutate: the tests fail without any mutation', file=sys.stderr)
            return 2
        return run(builds, mutants, files)
    finally:
        for build in builds:
            shutil.rmtree(build.dir, ignore_errors=True)


def run(builds, mutants, files):
    """Tries all mutants, one build a worker; prints survivors as they are found and the score at the end."""
    free = list(builds)
    killed = {path: 0 for path in files}
    tried = dict(killed)
    by = {}

    def one(mutant):
        build = free.pop()
        try:
            return mutant, build.try_mutant(mutant)
        finally:
            free.append(build)

    with concurrent.futures.ThreadPoolExecutor(len(builds)) as pool:
        for (path, number, old, new), noticed in pool.map(one, mutants):
            tried[path] += 1
            killed[path] += noticed is not None
            by[noticed] = by.get(noticed, 0) + 1
            if noticed is None:
                print('survived %s:%d\n  - %s\n  + %s' % (path, number + 1, old.strip(), new.strip()), flush=True)
    for path in files:
        if tried[path]:
            print('%-26s %4d of %4d killed' % (path, killed[path], tried[path]))
    total = sum(tried.values())
    print('killed by: ' + ', '.join('%s %d' % (name, count) for name, count in sorted(by.items(), key=str) if name))
    print('score: %d of %d, %.1f%%' % (sum(killed.values()), total, 100 * sum(killed.values()) / max(total, 1)))
    return 0


if __name__ == '__main__':
    sys.exit(main())
