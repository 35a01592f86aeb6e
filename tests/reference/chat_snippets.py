"""Small templates that exercise Python's side of Jinja2, each with the variables it reads."""

from __future__ import annotations

from typing import Any

TEXT = "  Héllo\tworld \x1c\n"
TREE = {"b": [1, 2.5, None, True, "x\"y'z"], "a": {"ü": "<&>", "n": []}, "e": {}, "s": "tab\t\x07\u2028\U0001f600"}

_METHODS = [
    "strip()", "lstrip()", "rstrip()", "strip(' \\n')", "split()", "split(None, 1)", "split('l')", "split('l', 1)",
    "split(sep='l', maxsplit=2)", "rsplit('l', 1)", "rsplit(None, 1)", "splitlines()", "splitlines(true)",
    "replace('l', 'L')", "replace('l', 'L', 1)", "upper()", "lower()", "title()", "capitalize()", "find('o')",
    "find('zzz')", "rfind('o')", "find('l', 5)", "find('l', -9, -4)", "index('w')", "count('l')", "count('l', 5)",
    "startswith('  H')", "startswith(('x', '  '))", "startswith('H', 2)", "endswith('\\n')", "endswith(('\\n', 'x'))",
    "partition('l')", "rpartition('l')", "partition('#')", "rpartition('#')", "removeprefix('  ')",
    "removesuffix('\\n')", "isdigit()", "isalpha()", "isspace()", "islower()", "isupper()", "isalnum()", "rjust(20, '.')",
    "ljust(20)", "zfill(20)",
]  # fmt: skip

_EXPRESSIONS = [
    "none", "true", "false", "1", "1.0", "1e3", "2 / 2", "7 // 2", "7 % 3", "2 ** 3", "'a' ~ none ~ true ~ 1 ~ 2.5",
    "undefined_name", "undefined_name ~ 'x'", "undefined_name.x", "undefined_name + 'x'", "'a' + 1", "'a' + none",
    "tree", "[tree.b, tree.a]", "tree.missing", "tree['b'][-1]", "tree.b[1:3]", "tree.b[::-1]", "tree.b[::2]", "'héllo'[::-1]",
    "'héllo'[1:-1]", "'héllo'[-3:]", "tree | tojson", "tree | tojson(indent=2)", "tree | tojson(ensure_ascii=true)",
    "tree | tojson(sort_keys=true)", "tree | tojson(separators=(',', ':'))", "tree | tojson(indent=4, separators=(';', '='))",
    "undefined_name | tojson", "1e16 | tojson", "0.00001", "1e300", "tree.items() | list", "tree.keys() | list",
    "tree.values() | list", "tree.get('a')", "tree.get('zz')", "tree.get('zz', 'd')", "tree | items | list", "tree | length",
    "text | trim", "text | length", "none | trim", "[1, none, 'a'] | join(', ')", "', '.join(['a', 'b'])", "','.join([1])",
    "[1, 2] | string", "none | string", "true | string", "'%s-%d' | format('a', 3)", "'{}-{}'.format('a', 3)",
    "text is string", "text is sequence", "text is iterable", "text is mapping", "tree is mapping", "tree is sequence",
    "tree.b is sequence", "tree.b is iterable", "tree.b[1:] is sequence", "none is iterable", "1 is iterable", "true is number",
    "true is integer", "1 is integer", "1.0 is float", "none is none", "undefined_name is none", "undefined_name is defined",
    "tree.zz is defined", "tree.zz is none", "tree.zz is not none", "false is false", "0 is false", "tree.b is true",
    "undefined_name is iterable", "'a' in tree", "'zz' in tree", "'l' in text", "1 in tree.b", "'x' not in ['x']", "'x' in undefined_name",
    "tree.b | first", "tree.b | last", "[] | first", "[3, 1, 2] | sort", "[3, 1, 2] | max", "[1, 2] | sum", "range(3) | list",
    "range(5, 0, -2) | list", "tree.b | reject('none') | list", "rows | selectattr('r', 'equalto', 'u') | list",
    "rows | rejectattr('r', 'equalto', 'u') | map(attribute='n') | list", "rows | map(attribute='n') | join('|')",
    "(rows | selectattr('r', 'equalto', 'u') | list)[-1].n", "rows | selectattr('n') | list | length",
    "'a\\nb\\n\\nc' | indent(2)", "'a\\nb' | indent(2, true)", "'a\\n\\nb' | indent(2, blank=true)", "'x' if false", "'a' if text else 'b'",
    "'aXb' | lower", "'aXb' | upper", "'hello world-foo' | title", "'hELLO' | capitalize", "'abc' | replace('b', 'd')",
    "none | default('d')", "undefined_name | default('d')", "'' | default('d', true)", "'<b>' | safe", "tree.a.n or 'empty'",
    "dict(a=1, b='c')", "tree.b.index(none)", "[1, 1, 2].count(1)", "1 < 2 < 3", "not undefined_name", "'ab' * 2", "[1] + [2]",
    "(1, 2)[0]", "'a' == 'a' and 1 != 2", "'abc' | list", "5 | string | length", "-7 // 2", "-7 % 3", "7 % -3", "'1' | int + 1",
    "'x'.missing is defined", "text.missing_method()", "tree.b.append(1)", "strftime_now('%d %b %Y')",
    "strftime_now('%A, %B %-d, %Y')", "strftime_now('%Y-%m-%d %H:%M:%S')", "strftime_now('%a %y %j %I:%M %p %%')",
    "raise_exception('no: ' ~ text)", "raise_exception(none)", "namespace(a=1).a", "messages[0]['content']", "tools", "documents",
    "add_generation_prompt", "messages[5].role", "messages[5]", "bos_token is defined",
]  # fmt: skip

_TEMPLATES = [
    "a\n{% if true %}\n  b\n{% endif %}\nc\n",
    "a\n  {% if true %}  b  {% endif %}  \nc\n\n",
    "{%- for x in [1, 2, 3] %}\n{% if x == 2 %}{% continue %}{% endif %}\n[{{ x }}]\n{%- endfor %}\n",
    "{% for x in range(10) %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}",
    "{% for k, v in tree.items() %}{{ k }}={{ v | tojson }};{% endfor %}",
    "{% for k in tree %}{{ k }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in 'añb' %}{{ loop.index }}{{ x }}{{ loop.first }}{{ loop.revindex }} {% endfor %}",
    "{% for x in rows if x.r == 'u' %}{{ loop.length }}{{ loop.previtem is defined }}{{ x.n }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
    "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}",
    "{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]",
    "{% macro m(a, b='z') %}<{{ a }}{{ b }}>{% endmacro %}{{ m(1) }}{{ m(1, b=none) }}",
    "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    "{% generation %}a{% set y = 1 %}{% endgeneration %}{{ y is defined }}",
    "x {%- generation -%}  a  {%- endgeneration +%} y",
    "{% raw %}{{ x }}{% endraw %}{# note #}!",
    "{% filter upper %}abc{% endfilter %}",
    "{% with a = 1 %}{{ a }}{% endwith %}{{ a is defined }}",
    "{% if tools %}t{% elif documents is none %}d{% endif %}",
    "{% for m in messages %}{{ m }}{% endfor %}",
    "tab\tand trailing newline\n",
    "two trailing newlines\n\n",
    "crlf\r\n{% if true %}\r\nx\r\n{% endif %}\r\n",
    "{{ 'a\\n\\t\\\\ \\'q\\' \\u00e9' }}{{ \"d\\\"q\" }}",
    "{{ '\\x41' }}",
    "{{- ' a ' -}}   \n b",
    "{%- set d = {'k': 'v', 'n': {'m': 1}} -%}{{ d.k }}{{ d['n'].m }}{{ d.n['zz'] is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% call(x) m() %}{{ x }}{% endcall %}",
    "{% macro w() %}[{{ caller() }}]{% endmacro %}{% call w() %}in{% endcall %}",
    "{{ messages | tojson }}",
    "{% for row in rows recursive %}{{ row.n }}{% endfor %}",
    "{% if 'a' is in ['a'] %}in{% endif %}{{ 3 is divisibleby 3 }}{{ 2 is even }}{{ 'a' is eq 'a' }}",
]

_VARIABLES: dict[str, Any] = {
    "text": TEXT,
    "tree": TREE,
    "rows": [{"r": "u", "n": 1}, {"r": "a", "n": 0}, {"r": "u", "n": 3}],
}


def _used(template: str) -> dict[str, Any]:
    return {name: value for name, value in _VARIABLES.items() if name in template}


SNIPPETS: list[tuple[str, dict[str, Any]]] = [
    (template, _used(template))
    for template in [
        *(f"{{{{ text.{method} }}}}" for method in _METHODS),
        *(f"{{{{ {expression} }}}}" for expression in _EXPRESSIONS),
        *_TEMPLATES,
    ]
]
