"""Small chat templates of the kinds that models have, each with one habit of theirs, in ChatML's marks."""

_BEGIN, _END = "'<|im_start|>'", "'<|im_end|>\n'"
_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def _chatml(turn: str, before: str = "", prompt: str = _PROMPT) -> str:
    """A template whose messages `m` are written by `turn`."""
    return before + "{% for m in messages %}" + turn + "{% endfor %}" + prompt


def _turn(role: str, content: str) -> str:
    return "{{ " + f"{_BEGIN} + {role} + '\n' + {content} + {_END}" + " }}"


def _prompt(tail: str) -> str:
    return _PROMPT.replace("{% endif %}", tail + "{% endif %}")


PLAIN = _turn("m.role", "m.content")
TOOL_AS_USER = (
    "{% if m.role == 'tool' %}" + _turn("'user'", "'<tool_response>\n' + m.content + '\n</tool_response>'")
    + "{% else %}" + PLAIN + "{% endif %}"
)  # fmt: skip
# The index of the last message of a user, before which thoughts are dropped.
_LAST_USER = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)


def _thinking(keeps: str, before: str = "", prompt: str = _PROMPT) -> str:
    """Thoughts, in their field or in the text, are written where the expression `keeps` holds."""
    split = (
        "{% set text = m.content or '' %}{% set thought = m.reasoning_content or '' %}"
        "{% if '</think>' in text %}{% set thought = text.split('</think>')[0].split('<think>')[-1].strip() %}"
        "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    )
    kept = _turn("'assistant'", "'<think>\n' + thought + '\n</think>\n\n' + text")
    dropped = _turn("'assistant'", "text")
    answer = split + "{% if thought and (" + keeps + ") %}" + kept + "{% else %}" + dropped + "{% endif %}"
    return _chatml(
        "{% if m.role == 'assistant' %}" + answer + "{% else %}" + TOOL_AS_USER + "{% endif %}", before, prompt
    )


_SWITCH = "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}%s{% endif %}"
LOOP_PROMPT = _prompt(_SWITCH.replace("%s", ""))
OPENS_PROMPT = _prompt(_SWITCH.replace("%s", "{% else %}{{ '<think>\n' }}"))
_REFUSE_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
_ALTERNATE = (
    "{% set ns = namespace(n=0) %}{% for m in messages if m.role != 'system' %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('roles must alternate user/assistant') }}"
    "{% endif %}{% set ns.n = ns.n + 1 %}{% endfor %}"
)
_MISTRAL = (
    "{% if m.role == 'user' %}{{ '[INST]' + %s + '[/INST]' }}{% elif m.role == 'assistant' %}"
    "{{ m.content + '<|im_end|>' }}{% endif %}"
)

APPENDS = _chatml(PLAIN)
TRIMS = _chatml(_turn("m.role", "m.content | trim"))
DROPS_AT_USER = _thinking("loop.index0 > ns.last", _LAST_USER, LOOP_PROMPT)
OPENS_AND_DROPS = _thinking("loop.index0 > ns.last", _LAST_USER, OPENS_PROMPT)
KEEP_VARIABLE = _thinking(
    "loop.index0 > ns.last or (preserve_thinking is defined and preserve_thinking)", _LAST_USER, OPENS_PROMPT
)
ALWAYS_CUTS = _thinking("false", "", _prompt("{{ '<think>\n' }}"))
KEEPS_THOUGHTS = _thinking("true", "", LOOP_PROMPT)
DATED = _chatml(PLAIN, "{{ '<|im_start|>system\nToday is ' + strftime_now('%d %b %Y') + '<|im_end|>\n' }}")
REFUSES_SYSTEM = _chatml(
    _turn("('model' if m.role == 'assistant' else m.role)", "m.content | trim"),
    _REFUSE_SYSTEM + _ALTERNATE,
    _PROMPT.replace("assistant", "model"),
)
ALTERNATES = _chatml(_MISTRAL.replace("%s", "m.content"), _ALTERNATE, "")
SYSTEM_LAST = _chatml(
    _MISTRAL.replace("%s", "(system + '\n\n' if loop.last and system else '') + m.content"),
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}", "",
)  # fmt: skip
GLUES_SYSTEM = _chatml(
    "{% if m.role != 'system' %}"
    + _turn("m.role", "(system + '\n\n' if loop.index0 == 1 and system else '') + m.content") + "{% endif %}",
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}",
)  # fmt: skip
NO_TOOLS_RAISES = _chatml(PLAIN, "{{ '<tools>' + (tools | length | string) + '</tools>' }}")
WANTS_PARTS = _chatml(
    _turn("m.role", "(m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join)")
)
_FINAL_END = "('<|im_end|>' if loop.last and not add_generation_prompt else '<|endoftext|>')"
ENDS_OTHERWISE = _chatml("{{ '<|im_start|>' + m.role + '\n' + m.content + " + _FINAL_END + " }}")
LONG_END = _chatml(
    "{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' + m.content + '\n</answer>\n<|im_end|>\n' }}"
    "{% else %}" + PLAIN + "{% endif %}"
)
NUMBERS_TURNS = _chatml("{{ '[' + loop.index | string + ']' + m.role + ': ' + m.content + '<|im_end|>\n' }}")


def _with_calls(call: str, before: str = "", between: str = "", after: str = "", first: str = "") -> str:
    """A template that offers tools, writes the calls of a reply, each by `call`, and shows replies in the role tool."""
    calls = (
        first + "{% if m.tool_calls %}{{ '" + before + "' }}{% for c in m.tool_calls %}{% set f = c.function %}" + call
        + "{% if not loop.last %}{{ '" + between + "' }}{% endif %}{% endfor %}{{ '" + after + "' }}{% endif %}"
    )  # fmt: skip
    answer = "{{ '<|im_start|>assistant\n' + (m.content or '') }}" + calls + "{{ '<|im_end|>\n' }}"
    return _chatml(
        "{% if m.role == 'assistant' %}" + answer + "{% else %}" + TOOL_AS_USER + "{% endif %}",
        "{% if tools %}{{ '<|im_start|>tools\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}",
    )


def _object(name: str, arguments: str) -> str:
    return f"{{{{ '{{\"{name}\": ' + (f.name | tojson) + ', \"{arguments}\": ' + (f.arguments | tojson) + '}}' }}}}"


def _tagged(name: str, argument: str, end: str) -> str:
    return f"{{{{ {name} }}}}{{% for k, v in f.arguments | items %}}{{{{ {argument} }}}}{{% endfor %}}{{{{ '{end}' }}}}"


_TEXT = "(v if v is string else v | tojson)"
_ONE_CALL = "{% if m.tool_calls and m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
CALLS = {
    "hermes": _with_calls("{{ '\n<tool_call>\n' }}" + _object("name", "arguments") + "{{ '\n</tool_call>' }}"),
    "mistral_list": _with_calls(_object("name", "arguments"), "[TOOL_CALLS][", ", ", "]"),
    "llama": _with_calls(_object("name", "parameters"), first=_ONE_CALL),
    "cohere": _with_calls(_object("tool_name", "parameters"), "<|START_ACTION|>[\n", ",\n", "\n]<|END_ACTION|>"),
    "minimax": _with_calls(_object("name", "arguments"), "\n<tool_calls>\n", "\n", "\n</tool_calls>"),
    "mistral": _with_calls("{{ '[TOOL_CALLS]' + f.name + '[CALL_ID]' + c.id + '[ARGS]' + f.arguments | tojson }}"),
    "functionary": _with_calls("{{ '<function=' + f.name + '>' + f.arguments | tojson + '</function>' }}"),
    "qwen_xml": _with_calls(
        "{{ '\n<tool_call>\n' }}"
        + _tagged(
            "'<function=' + f.name + '>\n'", f"'<parameter=' + k + '>\n' + {_TEXT} + '\n</parameter>\n'", "</function>"
        )
        + "{{ '\n</tool_call>' }}"
    ),
    "glm": _with_calls(
        _tagged(
            "'\n<tool_call>' + f.name + '\n'",
            f"'<arg_key>' + k + '</arg_key>\n<arg_value>' + {_TEXT} + '</arg_value>\n'",
            "</tool_call>",
        )
    ),
    "deepseek": _with_calls(
        _tagged(
            "'<invoke name=\"' + f.name + '\">\n'",
            f"'<parameter name=\"' + k + '\" string=\"' + (v is string) | lower + '\">' + {_TEXT} + '</parameter>\n'",
            "</invoke>\n",
        ),
        "<calls>\n", "", "</calls>",
    ),
    "lfm": _with_calls(
        "{{ f.name + '(' }}{% for k, v in f.arguments | items %}"
        "{{ k + '=' + v | tojson + (', ' if not loop.last else ')') }}{% endfor %}",
        "<|tool_call_start|>[", ", ", "]<|tool_call_end|>",
    ),
    "gemma": _with_calls(
        "{{ '<|tool_call>call:' + f.name + '{' }}{% for k, v in f.arguments | items %}"
        "{{ k + ':' + ('<|Q|>' + v + '<|Q|>' if v is string else v | tojson) + (',' if not loop.last else '') }}"
        "{% endfor %}{{ '}<tool_call|>' }}".replace("Q", '"')
    ),
    "apertus": _with_calls(
        "{{ '{' + (f.name | tojson) + ': ' + (f.arguments | tojson) + '}' }}",
        "<|tools_prefix|>[", ", ", "]<|tools_suffix|>",
    ),
    "unknown": _with_calls(
        "{% for k, v in f.arguments | items %}{{ '<' + f.name + '.' + k + '=' + v | string + '>' }}{% endfor %}"
    ),
}  # fmt: skip
