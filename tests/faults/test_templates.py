"""Chat templates that ask for gigabytes or hours are stopped, and those that people publish are not."""

import random
import resource
import time

import pytest

from models import chat, chat_limits, chat_templates
from tests.faults import fuzz

pytestmark = pytest.mark.nightly

USER = {"role": "user", "content": "u" * 1000}

BOMBS = {
    "times": "{{ 'a' * 10000000000 }}",
    "times, twice": "{% set x = 'a' * 4000000 %}{{ (x ~ x) * 1000 }}",
    "list times": "{{ ([0] * 1000000000) | length }}",
    "power": "{{ 9 ** 99999999 }}",
    "squares": "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "format method": "{{ '{:1000000000}'.format(1) }}",
    "format method, computed": "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "format method, again and again": "{{ ('{0}' * 100000).format('a' * 1000000) }}",
    "format_map": "{{ ('{a}' * 100000).format_map({'a': 'a' * 1000000}) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent, computed": "{{ '%*d' % (1000000000, 1) }}",
    "percent, again and again": "{{ ('%(a)s' * 100000) % {'a': 'a' * 1000000} }}",
    "ljust": "{{ 'a'.ljust(10000000000) }}",
    "rjust": "{{ 'a'.rjust(10000000000) }}",
    "zfill": "{{ 'a'.zfill(10000000000) }}",
    "center": "{{ 'a'.center(10000000000) }}",
    "center filter": "{{ 'a' | center(10000000000) }}",
    "center filter, mapped": "{{ ['a'] | map('center', 10000000000) | list }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "indent": "{{ 'a\nb' | indent(10000000000) }}",
    "indent with text": "{{ ('\n' * 1000000) | indent('a' * 1000000) }}",
    "replace": "{{ ('a' * 1000000).replace('a', 'a' * 1000000) }}",
    "replace nothing": "{{ ('a' * 1000000).replace('', 'a' * 1000000) }}",
    "replace filter": "{{ ('a' * 1000000) | replace('a', 'a' * 1000000) }}",
    "join": "{{ range(100000) | join('a' * 1000000) }}",
    "join method": "{{ ('a' * 1000000).join(['b'] * 100000) }}",
    "join of maps": "{{ range(100000) | map('string') | join('a' * 1000000) }}",
    "join of one text": "{{ (['a' * 1000000] * 100000) | join }}",
    "text of a list": "{{ (['a' * 1000000] * 100000) | string }}",
    "output of a list": "{{ ['a' * 1000000] * 100000 }}",
    "JSON of a list": "{{ (['a' * 1000000] * 100000) | tojson }}",
    "JSON indented": "{{ [[[1]]] | tojson(indent=1000000000) }}",
    "lists in lists": "{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}",
    "comparison of lists in lists": (
        "{% set ns = namespace(x=[0], y=[0]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}"
    ),
    "doubling": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling by ~": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling in blocks": (
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
        "{% set ns.x = y %}{% endfor %}"
    ),
    "doubling in a macro": (
        "{% macro f(x, n) %}{% if n %}{{ f(x, n - 1) }}{{ f(x, n - 1) }}{% else %}{{ x }}{% endif %}{% endmacro %}"
        "{{ f('aaaaaaaa', 60) }}"
    ),
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "output in loops": "{% for a in range(99999) %}{% for b in range(99999) %}aaaaaaaaaaaaaaaa{% endfor %}{% endfor %}",
    "sums in loops": "{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "searches in loops": (
        "{% set x = range(99999) | list %}{% for a in range(99999) %}{% if 'x' in x %}{% endif %}{% endfor %}"
    ),
    "many": "{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = ns.x + ['a' * 4000000] %}{% endfor %}",
    "JSON indented, by place": "{{ [[1]] | tojson(false, 1000000000) }}",
    "JSON with long separators": "{{ ([0] * 100000) | tojson(separators=('a' * 4000000, ':')) }}",
    "slices": (
        "{% set x = 'a' * 4000000 %}{% set ns = namespace(l=[]) %}{% for i in range(20000) %}"
        "{% set ns.l = ns.l + [x[1:]] %}{% endfor %}"
    ),
    "slices in a dictionary": (
        "{% set x = 'a' * 4000000 %}{% set ns = namespace(d={}) %}{% for i in range(5000) %}"
        "{% set ns.d = dict(ns.d, **{'k' ~ i: x[1:]}) %}{% endfor %}"
    ),
    "partition": (
        "{% set x = 'ab ' * 1000000 %}{% set ns = namespace(l=[]) %}{% for i in range(1000) %}"
        "{% set ns.l = [x.partition(' '), ns.l] %}{% endfor %}"
    ),
    "sort of long texts": "{% set a = 'a' * 2000000 %}{{ ([a ~ 'b', a ~ 'c'] * 50000) | sort | length }}",
    "groupby": "{% set a = 'a' * 2000000 %}{{ ([{'k': a ~ 'b'}, {'k': a ~ 'c'}] * 20000) | groupby('k') | length }}",
    "unique": "{% set a = 'a' * 2000000 %}{{ ([a ~ 'b', a ~ 'c'] * 50000) | unique | list | length }}",
    "max": "{% set a = 'a' * 2000000 %}{{ ([a ~ 'b', a ~ 'c'] * 50000) | max | length }}",
    "search for a long text": "{% set a = 'a' * 2000000 %}{{ (a ~ 'c') in [a ~ 'b'] * 100000 }}",
    "search by a test": "{% set a = 'a' * 2000000 %}{{ (a ~ 'c') is in([a ~ 'b'] * 100000) }}",
    "selection of a long text": (
        "{% set a = 'a' * 2000000 %}{{ ([a ~ 'b'] * 50000) | select('equalto', a ~ 'c') | list | length }}"
    ),
    "selection in a long text": "{{ (['b'] * 100000) | select('in', 'a' * 4000000) | list | length }}",
    "mapped twice": "{{ (['b'] * 50000) | map('string') | select('in', 'a' * 4000000) | list | length }}",
    "count of a long text": "{% set a = 'a' * 2000000 %}{{ ([a ~ 'b'] * 100000).count(a ~ 'c') }}",
    "counts in loops": "{% set a = 'a' * 4000000 %}{% for i in range(99999) %}{{ a.count('ab') }}{% endfor %}",
    "sum of lists": (
        "{% set l = [[0]] * 40000 %}{% for i in range(100) %}{{ (l | sum(start=[])) | length }}{% endfor %}"
    ),
    "many outputs": "{{ a }}" * 200_000,
    "a long list": "{{ [" + "1," * 500_000 + "] | length }}",
    "many loops": "{% for a in b %}{% endfor %}" * 35_000,
    "rounding": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "bytes of a number": "{{ (1).to_bytes(10000000000, 'big') }}",
    "date": "{{ strftime_now('%1000000000d') }}",
    "nested": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested loops": "{% for a in range(2) %}" * 30 + "{% endfor %}" * 30,
    "a template of megabytes": "a" * 10_000_000,
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_does_not_go_off(name, monkeypatch, seen):
    monkeypatch.setattr(chat_limits, "SECONDS", 1.0)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    with pytest.raises(chat.ChatTemplateError, match="the chat template failed: "):
        chat.render(BOMBS[name], [USER])
    assert time.thread_time() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KiB
    seen("chat templates that ask for too much", "none went off", templates=1)


def test_waiting_for_a_busy_machine_costs_nothing(monkeypatch):
    monkeypatch.setattr(chat_limits, "SECONDS", 0.2)
    template = "{{ wait() }}{% for i in range(500) %}{{ i }}{% endfor %}"
    assert chat.render(template, [USER], wait=lambda: time.sleep(0.4) or "") == "".join(map(str, range(500)))


def test_an_error_of_megabytes_is_cut():
    with pytest.raises(chat.ChatTemplateError) as caught:
        chat.render("{{ raise_exception('a' * 4000000) }}", [USER])
    assert len(str(caught.value)) < 600


def test_a_template_of_the_greatest_length_is_compiled_in_seconds(seen):
    unit = "{{ a }}{% if b %}{% endif %}"
    template = unit * (chat_limits.LONGEST_TEMPLATE // len(unit))
    start = time.thread_time()
    assert chat.render(template, [USER]) == ""
    assert time.thread_time() - start < 10
    seen("chat templates of the greatest length", "compiled", templates=1)


def test_a_long_conversation_is_within_the_limits():
    turns = [{"role": role, "content": "word " * 200} for _ in range(200) for role in ("user", "assistant")]
    start = time.thread_time()
    for template in chat_templates.BUILTIN.values():
        assert len(chat.render(template, turns)) >= 400_000
    assert time.thread_time() - start < 10


def test_what_templates_use_still_works():
    template = (
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('|') }};"
        "{{ 'a,b'.split(',')[1] ~ '%02d' % 3 ~ '{}!'.format('x') }};{{ 'ab' | replace('b', 'c') | indent(2, true) }};"
        "{{ [1, 2] + [3] }};{{ {'a': (1, 'b')} | tojson(indent=2) | length }};{{ 7 // 2 * 2 ** 3 }}"
    )
    shown = chat.render(template, [{"role": "user", "content": "hi"}, {"role": "user", "content": "you"}])
    assert shown == "hi|you;b03x!;  ac;[1, 2, 3];31;24"


@fuzz.sharded
def test_templates_made_of_scraps_end(monkeypatch, seen, shard):
    """Published templates and bombs, cut and put together at random: a text within the limit, or the one error."""
    monkeypatch.setattr(chat_limits, "SECONDS", 1.0)
    scraps = [*chat_templates.BUILTIN.values(), *(bomb for bomb in BOMBS.values() if len(bomb) < 10_000)]
    for seed in (seeds := fuzz.rounds(40, 2000, shard)):
        rng = random.Random(seed)
        first, second = rng.choice(scraps), rng.choice(scraps)
        template = first[: rng.randrange(len(first) + 1)] + second[rng.randrange(len(second) + 1) :]
        try:
            shown = chat.render(template, [USER])
        except chat.ChatTemplateError:
            continue
        assert len(shown) <= chat_limits.LARGEST, seed
    seen("templates cut and put together", "a text within the limit, or the one error", rounds=len(seeds))
